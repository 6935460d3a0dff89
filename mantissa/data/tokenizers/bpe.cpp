#include <array>
#include <cstdio>
#include <queue>
#include <tuple>
#include <utility>

#include "mantissa/data/tokenizers/bpe_internal.h"
#include "mantissa/data/tokenizers/utf8_internal.h"

namespace mantissa::tokenizers {
namespace {

constexpr int64_t kGone = -1;

/// The tokens of a word as a list, of which neighbours are joined.
class Joined {
 public:
  Joined(const Bpe& bpe, std::vector<int64_t> ids) : bpe_(bpe), ids_(std::move(ids)) {
    const auto n = static_cast<int64_t>(ids_.size());
    for (int64_t i = 0; i < n; ++i) next_.push_back(i + 1), previous_.push_back(i - 1);
    for (int64_t i = 0; i + 1 < n; ++i) offer(i);
  }

  void run(std::vector<int64_t>& to) {
    while (!candidates_.empty()) {
      const Candidate best = candidates_.top();
      candidates_.pop();
      if (is_current(best)) join(best);
    }
    for (const int64_t id : ids_)
      if (id != kGone) to.push_back(id);
  }

 private:
  /// The lowest rank first, and of equal ranks the leftmost.
  struct Candidate {
    int64_t rank, at, id;
    bool operator>(const Candidate& other) const {
      return std::tie(rank, at) > std::tie(other.rank, other.at);
    }
  };

  int64_t& id(int64_t at) { return ids_[static_cast<size_t>(at)]; }
  int64_t& next(int64_t at) { return next_[static_cast<size_t>(at)]; }
  int64_t& previous(int64_t at) { return previous_[static_cast<size_t>(at)]; }
  bool has_next(int64_t at) { return next(at) < static_cast<int64_t>(ids_.size()); }

  const Bpe::Merge* rule_at(int64_t at) {
    const auto found = bpe_.merges.find(Bpe::pair(id(at), id(next(at))));
    return found == bpe_.merges.end() ? nullptr : &found->second;
  }
  void offer(int64_t at) {
    if (const Bpe::Merge* const rule = rule_at(at)) candidates_.push({rule->rank, at, rule->id});
  }
  /// False if one of the two tokens has been joined with another since.
  bool is_current(const Candidate& c) {
    if (id(c.at) == kGone || !has_next(c.at)) return false;
    const Bpe::Merge* const rule = rule_at(c.at);
    return rule && rule->id == c.id;
  }
  void join(const Candidate& c) {
    const int64_t right = next(c.at);
    id(c.at) = c.id, id(right) = kGone;
    next(c.at) = next(right);
    if (has_next(c.at)) previous(next(c.at)) = c.at;
    if (previous(c.at) >= 0) offer(previous(c.at));
    if (has_next(c.at)) offer(c.at);
  }

  const Bpe& bpe_;
  std::vector<int64_t> ids_, next_, previous_;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates_;
};

}  // namespace

bool Bpe::add_bytes(std::string_view character, std::vector<int64_t>& to) const {
  const size_t before = to.size();
  for (const char c : character) {
    std::array<char, 8> name{};
    std::snprintf(name.data(), name.size(), "<0x%02X>", static_cast<unsigned>(static_cast<unsigned char>(c)));
    const auto found = vocabulary.find(std::string_view(name.data()));
    if (found == vocabulary.end()) {
      to.resize(before);
      return false;
    }
    to.push_back(found->second);
  }
  return true;
}

std::vector<int64_t> Bpe::characters(std::string_view word) const {
  std::vector<int64_t> ids;
  bool is_unknown_due = false;  // the package adds it before the next token of the vocabulary
  while (!word.empty()) {
    const std::string_view character = word.substr(0, utf8_step(word).bytes);
    word.remove_prefix(character.size());
    if (const auto found = vocabulary.find(character); found != vocabulary.end()) {
      if (is_unknown_due) ids.push_back(*unknown);
      is_unknown_due = false;
      ids.push_back(found->second);
    } else if (!(byte_fallback && add_bytes(character, ids)) && unknown) {
      if (is_unknown_due && !fuse_unknown) ids.push_back(*unknown);
      is_unknown_due = true;
    }
  }
  if (is_unknown_due) ids.push_back(*unknown);
  return ids;
}

void Bpe::encode(std::string_view word, std::vector<int64_t>& to) const {
  if (ignore_merges) {
    if (const auto found = vocabulary.find(word); found != vocabulary.end())
      return to.push_back(found->second);
  }
  Joined(*this, characters(word)).run(to);
}

}  // namespace mantissa::tokenizers
