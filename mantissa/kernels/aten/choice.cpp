#include "mantissa/kernels/aten/choice.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <fnmatch.h>
#include <map>
#include <mutex>
#include <system_error>
#include <utility>

#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include "mantissa/core/clock_internal.h"
#include "mantissa/core/suggest.h"
#include "mantissa/kernels/aten/calibration_internal.h"
#include "mantissa/kernels/aten/choice_cache_internal.h"
#include "mantissa/kernels/aten/choice_internal.h"
#include "mantissa/kernels/aten/environment.h"

namespace mantissa {
namespace {

struct NamedElement {
  const char* name;
  at::ScalarType dtype;
};
/// In the order of kernels::Element.
constexpr std::array<NamedElement, 3> kElements = {
    {{"fp32", at::kFloat}, {"bf16", at::kBFloat16}, {"fp16", at::kHalf}}};

/// True if there is a choice: among float32 operations, unscaling and products with weights in 4 and 8 bits have kernels
/// of ours.
bool is_chosen(size_t element, size_t family) {
  return kElements[element].dtype != at::kFloat || family >= static_cast<size_t>(KernelFamily::kUnscale);
}

/// True for products of more than a few rows with a weight in 4 bits, and for the gradients.
bool is_matrix_product_4bit(KernelFamily family) {
  return family > KernelFamily::kFewRows4Bit && family < KernelFamily::kProductInt8;
}

/// True if a family has builds of its own for pairs of bf16.
bool has_pairs(KernelFamily family, at::ScalarType dtype) {
  return dtype == at::kBFloat16 &&
         (family == KernelFamily::kLargeProduct || family == KernelFamily::kProduct ||
          family == KernelFamily::kSmallProduct || family == KernelFamily::kLargeBatchedProduct ||
          family == KernelFamily::kBatchedProduct || is_matrix_product_4bit(family));
}

/// True if a family has a build of its own for a tier.
bool has_build(KernelFamily family, at::ScalarType dtype, CpuTier tier) {
  if (tier == CpuTier::kAvx512Vnni) return family == KernelFamily::kProductInt8;
  if (tier == CpuTier::kAmxBf16) return is_matrix_product_4bit(family);
  return tier != CpuTier::kAvx512Bf16 || has_pairs(family, dtype);
}

std::string key_of(size_t element, size_t family) {
  return std::string(kElements[element].name) + "." + family_names()[family];
}

/// Returns the kernels of a family that are distinct builds, the likely fastest first, and libtorch's last.
std::vector<Kernel> candidates(size_t element, size_t family) {
  std::vector<Kernel> result;
  for (auto tier = cpu_tiers().rbegin(); tier != cpu_tiers().rend(); ++tier) {
    if (*tier == CpuTier::kGeneric && !result.empty()) continue;
    if (cpu_features().includes(features_of(*tier)) &&
        has_build(static_cast<KernelFamily>(family), kElements[element].dtype, *tier))
      result.push_back({*tier});
  }
  result.push_back(kLibtorchs);
  return result;
}

/// Returns the kernel that a pin to `kernel` selects for a family, which may have no build of its own for
/// that tier.
Kernel resolved_kernel(size_t element, size_t family, Kernel kernel) {
  if (!kernel.tier) return kernel;
  for (const Kernel& candidate : candidates(element, family))
    if (candidate.tier && features_of(*kernel.tier).includes(features_of(*candidate.tier))) return candidate;
  return {CpuTier::kGeneric};
}

/// A single byte, so that it can be read while another thread decides; 0 means undecided.
using Code = uint8_t;
Code code_of(Kernel kernel) {
  return kernel.tier ? static_cast<Code>(2 + static_cast<int>(*kernel.tier)) : 1;
}
Kernel kernel_of(Code code) { return code == 1 ? kLibtorchs : Kernel{static_cast<CpuTier>(code - 2)}; }

/// A pin set by the user or by a checkpoint. A checkpoint pins kernels only.
struct Pin {
  std::optional<Kernel> kernel;  ///< none: measured
  bool by_user = false;
};

struct Decision {
  std::string source;
  std::vector<KernelTiming> timings;
};

/// The processor time that a process may spend on measuring: some seconds, and a share of the time it has
/// used. A family whose measurement begins within the budget is measured completely. All families take some
/// 55 ms in a new process.
struct Budget {
  double seconds = 0.035, share = 0.01;
  double spent = 0;

  double left() const { return seconds - spent + share * seconds_of(CLOCK_PROCESS_CPUTIME_ID); }
};

struct Table {
  std::atomic<Code> kernels[kElements.size()][kKernelFamilies] = {};
  std::mutex mutex;  // guards the members below
  Decision decisions[kElements.size()][kKernelFamilies];
  Pin pins[kElements.size()][kKernelFamilies];
  bool environment_is_read = false;
  std::optional<ChoiceCache> cache;
  Budget budget;
};

/// The table is never destroyed, because other threads may still multiply at the program's end.
Table& table() {
  static Table& table = *new Table;
  return table;
}

thread_local const ForcedKernel* forced = nullptr;

std::vector<std::string> kernel_names() {
  std::vector<std::string> names = {"libtorch"};
  for (const CpuTier tier : cpu_tiers()) names.push_back(tier_name(tier));
  return names;
}

/// Returns the kernel called `name`, if this CPU has it.
Kernel parse_kernel(const std::string& name, const std::string& asked) {
  if (name == "libtorch") return kLibtorchs;
  for (const CpuTier tier : cpu_tiers()) {
    if (tier_name(tier) != name) continue;
    TORCH_CHECK_VALUE(cpu_features().includes(features_of(tier)), asked,
                      ": this CPU runs kernels up to tier ", tier_name(cpu_tier()),
                      cpu_tier() == hardware_cpu_tier() ? "" : " (by MANTISSA_MAX_ISA)", ", not ", name,
                      "; choose one of these, or 'measured' for the fastest");
    return {tier};
  }
  TORCH_CHECK_VALUE(false, asked, ": there is no kernel '", name, "'", did_you_mean(name, kernel_names()),
                    "; choose one of ", join_names(kernel_names()));
}

bool matches(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

/// The pin of one family in one dtype. No kernel means "measured".
struct Entry {
  size_t element, family;
  std::optional<Kernel> kernel;
};

/// Parses one entry, [[DTYPE.]FAMILY=]KERNEL.
std::vector<Entry> parse_entry(const std::string& entry, const std::string& asked) {
  const size_t equals = entry.find('=');
  const std::string name = equals == std::string::npos ? entry : entry.substr(equals + 1);
  const std::string what = equals == std::string::npos ? "*" : entry.substr(0, equals);
  const size_t dot = what.find('.');
  const std::string dtype = dot == std::string::npos ? "*" : what.substr(0, dot);
  const std::string family = dot == std::string::npos ? what : what.substr(dot + 1);
  const std::optional<Kernel> kernel =
      name == "measured" ? std::nullopt : std::optional(parse_kernel(name, asked));
  std::vector<Entry> pins;
  bool has_dtype = false;
  for (const auto element : c10::irange(kElements.size())) {
    if (!matches(dtype, kElements[element].name)) continue;
    has_dtype = true;
    for (const auto f : c10::irange(family_names().size()))
      if (matches(family, family_names()[f]) && is_chosen(element, f)) pins.push_back({element, f, kernel});
  }
  TORCH_CHECK_VALUE(has_dtype, asked, ": there are no kernels for '", dtype, "'; choose bf16, fp16 or fp32");
  const std::vector<std::string> names(family_names().begin(), family_names().end());
  TORCH_CHECK_VALUE(!pins.empty(), asked, ": there is no family '", family, "' of kernels",
                    did_you_mean(family, names), "; choose one of ", join_names(names));
  return pins;
}

std::vector<Entry> parse(const std::string& text, const std::string& asked) {
  std::vector<Entry> pins;
  for (const std::string& entry : choice::entries_of(text)) {
    const std::vector<Entry> more = parse_entry(entry, asked);
    pins.insert(pins.end(), more.begin(), more.end());
  }
  return pins;
}

void set_pins(Table& table, const std::vector<Entry>& entries, bool by_user) {
  for (const auto& [element, family, kernel] : entries) {
    Pin& pin = table.pins[element][family];
    if (pin.by_user && !by_user) continue;
    pin = {kernel, by_user};
    table.kernels[element][family].store(0, std::memory_order_release);
  }
}

void read_environment(Table& table) {
  if (table.environment_is_read) return;
  cpu_features();  // its errors come first
  const char* const value = std::getenv("MANTISSA_KERNELS");
  if (value != nullptr && *value != '\0')
    set_pins(table, parse(value, std::string("MANTISSA_KERNELS=") + value), /*by_user=*/true);
  table.environment_is_read = true;
}

/// Returns the fastest of the timed kernels, if exactly these kernels are available now.
std::optional<Kernel> among(const std::vector<Kernel>& kernels, const std::vector<KernelTiming>& timings) {
  if (timings.size() != kernels.size()) return std::nullopt;
  for (const auto i : c10::irange(kernels.size()))
    if (timings[i].kernel != kernel_name(kernels[i])) return std::nullopt;
  return kernels[fastest(timings)];
}

void settle(Table& table, size_t element, size_t family, Kernel kernel, Decision decision) {
  table.decisions[element][family] = std::move(decision);
  table.kernels[element][family].store(code_of(kernel), std::memory_order_release);
}

/// Returns the kernel that is likely fastest when nothing was measured: that of the nearest similar family,
/// or else the one that the CPU's flags suggest.
Kernel guessed_kernel(const ChoiceCache& measured, size_t element, size_t family) {
  const std::vector<Kernel> kernels = candidates(element, family);
  Kernel likely = kernels.front();
  size_t nearest = kKernelFamilies;
  for (const auto other : c10::irange(size_t{kKernelFamilies})) {
    const size_t distance = other < family ? family - other : other - family;
    if (!are_alike(family, other) || distance >= nearest) continue;
    const auto kernel = among(candidates(element, other), measured.timings(key_of(element, other)));
    if (!kernel || std::find(kernels.begin(), kernels.end(), *kernel) == kernels.end()) continue;
    likely = *kernel;
    nearest = distance;
  }
  return likely;
}

/// Returns the kernel that was fastest in earlier processes, if they have timed all kernels that are available now.
std::optional<Kernel> cached_kernel(const Table& table, size_t element, size_t family) {
  return among(candidates(element, family), table.cache->timings(key_of(element, family)));
}

bool should_be_measured(const Table& table, size_t element, size_t family) {
  return !cached_kernel(table, element, family) || table.cache->is_due(key_of(element, family));
}

/// Measures the undecided families of `family`'s group that need it, `family` first, as far as the budget goes.
void measure(Table& table, size_t element, size_t family) {
  std::vector<size_t> families = {family};
  const auto [first, end] = group_of(family);
  for (const auto other : c10::irange(first, end))
    if (other != family && is_chosen(element, other) && table.kernels[element][other] == 0 &&
        !table.pins[element][other].kernel && should_be_measured(table, element, other))
      families.push_back(other);
  std::vector<Contest> contests;
  for (const size_t each : families)
    contests.push_back(
        {static_cast<KernelFamily>(each), kElements[element].dtype, candidates(element, each)});
  std::vector<std::vector<KernelTiming>> timings(contests.size());
  try {
    const double left = table.budget.left();
    double budget = left;
    timings = time_kernels(contests, budget);
    table.budget.spent += left - budget;
  } catch (const std::system_error&) {  // no thread can be created for measuring
  }
  std::map<std::string, std::vector<KernelTiming>> rows;
  for (const auto i : c10::irange(families.size()))
    if (!timings[i].empty()) rows[key_of(element, families[i])] = timings[i];
  if (rows.empty()) return;
  table.cache->keep(rows);
  for (const auto i : c10::irange(families.size())) {
    if (timings[i].empty()) continue;
    const std::vector<KernelTiming> least = table.cache->timings(key_of(element, families[i]));
    settle(table, element, families[i], contests[i].kernels[fastest(least)], {"measured", least});
  }
}

/// Decides on a kernel. The caller holds the mutex.
Kernel decide(Table& table, size_t element, size_t family) {
  read_environment(table);
  const auto decided = [&] { return table.kernels[element][family].load(std::memory_order_acquire); };
  if (const Code code = decided(); code != 0) return kernel_of(code);
  if (const auto& pin = table.pins[element][family].kernel) {
    settle(table, element, family, resolved_kernel(element, family, *pin), {"pinned", {}});
    return kernel_of(decided());
  }
  if (!table.cache) table.cache = ChoiceCache::read();
  if (should_be_measured(table, element, family)) measure(table, element, family);
  if (decided() != 0) return kernel_of(decided());
  if (const auto kernel = cached_kernel(table, element, family)) {
    settle(table, element, family, *kernel, {"cached", table.cache->timings(key_of(element, family))});
  } else {
    settle(table, element, family, guessed_kernel(*table.cache, element, family), {"default", {}});
  }
  return kernel_of(decided());
}

}  // namespace

ForcedKernel::ForcedKernel(KernelFamily family, Kernel kernel) : family(family), kernel(kernel) {
  forced = this;
}
ForcedKernel::~ForcedKernel() { forced = nullptr; }

Kernel kernel_for(KernelFamily family, kernels::Element element) {
  const auto e = static_cast<size_t>(element), f = static_cast<size_t>(family);
  const Code code = table().kernels[e][f].load(std::memory_order_acquire);
  if (forced != nullptr) {  // this is the measuring thread, which must not wait for itself
    if (kind_of(forced->family) == kind_of(family)) return forced->kernel;
    return code != 0 ? kernel_of(code) : candidates(e, f).front();
  }
  if (code != 0) return kernel_of(code);
  const std::lock_guard lock(table().mutex);
  return decide(table(), e, f);
}

Kernel kernel_for_own_operator(KernelFamily family, kernels::Element element) {
  return forced != nullptr || cpu_kernels_by_environment() ? kernel_for(family, element) : kLibtorchs;
}

std::vector<std::string> choice::entries_of(const std::string& text) {
  std::vector<std::string> entries;
  for (size_t begin = 0; !text.empty() && begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    entries.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return entries;
}

void check_cpu_kernel_pins(const std::string& pins) { parse(pins, "the CPU kernels '" + pins + "'"); }

void choice::pin(const std::string& pins) {
  const std::vector<Entry> entries = parse(pins, "the CPU kernels '" + pins + "'");
  const std::lock_guard lock(table().mutex);
  read_environment(table());
  set_pins(table(), entries, /*by_user=*/true);
}

void forget_cpu_kernel_choices() {
  const std::lock_guard lock(table().mutex);
  for (const auto element : c10::irange(kElements.size()))
    for (const auto family : c10::irange(family_names().size())) {
      table().pins[element][family] = {};
      table().kernels[element][family].store(0, std::memory_order_release);
    }
  table().environment_is_read = false;
  table().cache.reset();
  table().budget = {};
}

void set_calibration_budget(double seconds) {
  const std::lock_guard lock(table().mutex);
  table().budget = {.seconds = seconds, .share = 0, .spent = 0};
}

std::vector<std::string> choice::resume(const std::string& choices) {
  std::vector<std::string> refused;
  const std::lock_guard lock(table().mutex);
  read_environment(table());
  for (auto& of_element : table().pins)
    for (Pin& pin : of_element)
      if (!pin.by_user) pin = {};
  for (const std::string& entry : entries_of(choices)) {
    try {
      set_pins(table(), parse_entry(entry, entry), /*by_user=*/false);
    } catch (const c10::ValueError&) {
      refused.push_back(entry);
    }
  }
  return refused;
}

std::string choice::all() {
  std::string choices;
  for (const auto element : c10::irange(kElements.size()))
    for (const auto family : c10::irange(family_names().size())) {
      const Code code = table().kernels[element][family].load(std::memory_order_acquire);
      if (code == 0) continue;
      if (!choices.empty()) choices += ',';
      choices += key_of(element, family) + '=' + kernel_name(kernel_of(code));
    }
  return choices;
}

std::vector<KernelChoice> choice::rows() {
  std::vector<KernelChoice> rows;
  const std::lock_guard lock(table().mutex);
  table().budget.seconds = 1e6;  // a caller who asks for all families is willing to wait
  for (const auto element : c10::irange(kElements.size()))
    for (const auto family : c10::irange(family_names().size())) {
      if (!is_chosen(element, family)) continue;
      const Kernel kernel = decide(table(), element, family);
      const Decision& decision = table().decisions[element][family];
      rows.push_back({kElements[element].name, family_names()[family], kernel_name(kernel), decision.source,
                      decision.timings,
                      over_float32(static_cast<KernelFamily>(family), kElements[element].dtype, kernel)});
    }
  return rows;
}

void check_kernel_pins_of_environment() {
  const std::lock_guard lock(table().mutex);
  read_environment(table());
}

}  // namespace mantissa
