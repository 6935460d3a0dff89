#pragma once

namespace mantissa {

/// Gives access to a member that libtorch keeps private, if there is no other way.
/// The language allows it: an explicit instantiation may name any member ([temp.spec.general], "access
/// checking"). If libtorch renames the member or changes its type, the code does not compile. Example of a
/// tag and its use:
///
///     struct Best {
///       using type = float ReduceLROnPlateauScheduler::*;
///       friend type pointer_to(Best);
///     };
///     template struct PrivateMember<Best, &ReduceLROnPlateauScheduler::best>;
///     scheduler.*pointer_to(Best()) = 0.5F;
template <typename Tag, typename Tag::type kMember>
struct PrivateMember {
  friend typename Tag::type pointer_to(Tag) { return kMember; }
};

}  // namespace mantissa
