#pragma once

namespace mantissa {

/// Reaches a member that libtorch keeps private, where it offers no other way.
/// The language allows it: an explicit instantiation may name any member ([temp.spec.general], "access
/// checking"). A libtorch that renames the member or changes its type does not compile. Tag and
/// instantiation stand in no unnamed namespace, which the language asks.
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
