#include "mantissa/kernels/cpu/attention.h"

#include <algorithm>

#include <c10/util/irange.h>

#include "mantissa/kernels/cpu/parts_internal.h"
#include "mantissa/kernels/cpu/scratch_internal.h"

namespace mantissa::kernels::cpu {
namespace {

/// Each part packs the other operand for itself, which does not pay for fewer rows.
constexpr int64_t kMinRows = 64;

/// Returns the number of parts for each of `heads`: one, unless some threads would wait for others.
int64_t parts_for(int64_t heads, int64_t threads) {
  return heads % threads == 0 || heads >= 8 * threads ? 1 : divide_up(8 * threads, heads);
}

/// Makes one part per key head, unless more than 2 of 7 threads would wait. In that case the gradients of
/// keys and those of queries become separate parts, each for a range, and the scores are computed twice.
std::vector<AttentionGradientPart> gradient_parts(const Attention& g, int64_t threads, int64_t nr) {
  const int64_t heads = g.batch * g.kv_heads, group = g.heads / g.kv_heads;
  const bool whole = divide_up(heads, threads) * threads * 5 <= heads * 7;
  const int64_t cuts = whole ? 1 : divide_up(4 * threads, heads);
  const int64_t key_step = whole ? g.keys : std::max(kMinRows, divide_up(g.keys, cuts));
  const int64_t query_step = round_up(std::max(kMinRows, divide_up(g.queries * group, cuts)), nr);
  std::vector<AttentionGradientPart> parts;
  for (const auto i : c10::irange(heads)) {
    const int64_t batch = i / g.kv_heads, kv_head = i % g.kv_heads, head = kv_head * group;
    for (int64_t key = 0; key < g.keys; key += key_step)
      parts.push_back({batch, kv_head, head, head + group, 0, g.queries, key,
                       std::min(g.keys, key + key_step), whole, true});
    if (whole) continue;
    for (int64_t h = head; h < head + group; ++h)
      for (int64_t query = 0; query < g.queries; query += query_step)
        parts.push_back({batch, kv_head, h, h + 1, query, std::min(g.queries, query + query_step), 0, g.keys,
                         true, false});
  }
  return parts;
}

}  // namespace

const std::vector<AttentionBuild>& attention_builds() {
  static const std::vector<AttentionBuild> builds = {
#if defined(__x86_64__)
    {CpuTier::kAvx512, avx512::attention, avx512::attention_scratch_size, avx512::attention_gradient,
     avx512::attention_gradient_scratch_size, 32},
    {CpuTier::kAvx2, avx2::attention, avx2::attention_scratch_size, avx2::attention_gradient,
     avx2::attention_gradient_scratch_size, 16},
#endif
    {CpuTier::kGeneric, generic::attention, generic::attention_scratch_size, generic::attention_gradient,
     generic::attention_gradient_scratch_size, 1}
  };
  return builds;
}

void attention(const Attention& g, const AttentionBuild& build) {
  const int64_t heads = g.batch * g.heads;
  const int64_t threads = threads_for(heads * g.queries * g.keys * g.width);
  const int64_t step =
      round_up(std::max(kMinRows, divide_up(g.queries, parts_for(heads, threads))), build.nr);
  const int64_t parts = divide_up(g.queries, step);
  at::parallel_for(0, heads * parts, divide_up(heads * parts, threads), [&](int64_t begin, int64_t end) {
    float* const scratch = thread_scratch(build.scratch_size(g));
    for (const auto task : c10::irange(begin, end)) {
      const int64_t head = task / parts, query = task % parts * step;
      build.run(g, {head / g.heads, head % g.heads, query, std::min(g.queries, query + step)}, scratch);
    }
  });
}

void attention_gradient(const AttentionGradient& gradient, const AttentionBuild& build) {
  const Attention& g = gradient.attention;
  const int64_t threads = threads_for(5 * g.batch * g.heads * g.queries * g.keys * g.width / 2);
  const std::vector<AttentionGradientPart> parts = gradient_parts(g, threads, build.nr);
  const int64_t keys = parts[0].key_end - parts[0].key_begin;  // no part has more keys
  const auto tasks = static_cast<int64_t>(parts.size());
  at::parallel_for(0, tasks, divide_up(tasks, threads), [&](int64_t begin, int64_t end) {
    float* const scratch = thread_scratch(build.gradient_scratch_size(g, keys));
    for (const auto task : c10::irange(begin, end)) build.run_gradient(gradient, parts[task], scratch);
  });
}

}  // namespace mantissa::kernels::cpu
