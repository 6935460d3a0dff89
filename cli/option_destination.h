#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include "cli/fit_options.h"
#include "cli/option.h"
#include "cli/option_parsers.h"
#include "cli/recipe_option.h"
#include "mantissa/core/formats.h"
#include "mantissa/core/parse_number.h"

// The destination of a table row's value: a member of FitOptions, or of one of its parts.
namespace mantissa::cli {

/// The type of value that a member takes.
template <typename T>
struct ValueOf {
  using type = T;
};
template <typename T>
struct ValueOf<std::optional<T>> {
  using type = T;
};
template <>
struct ValueOf<AccumulationSchedule> {
  using type = int64_t;
};

template <typename Part>
Part& part_of(FitOptions& o) {
  if constexpr (std::is_same_v<Part, FitOptions>) {
    return o;
  } else if constexpr (std::is_same_v<Part, TrainerOptions>) {
    return o.trainer;
  } else if constexpr (std::is_same_v<Part, PrecisionOptions>) {
    return o.trainer.precision_options;
  } else if constexpr (std::is_same_v<Part, ImageOptions>) {
    return o.images;
  } else if constexpr (std::is_same_v<Part, DataLoaderOptions>) {
    return o.loader;
  } else if constexpr (std::is_same_v<Part, OptimizerSettings>) {
    return o.optimizer_settings;
  } else if constexpr (std::is_same_v<Part, WarmupCosineOptions>) {
    return o.warmup;
  } else if constexpr (std::is_same_v<Part, EmaOptions>) {
    return o.ema;
  } else if constexpr (std::is_same_v<Part, EarlyStoppingOptions>) {
    return o.early_stopping;
  } else if constexpr (std::is_same_v<Part, DivergenceMonitorOptions>) {
    return o.divergence;
  } else {
    static_assert(std::is_same_v<Part, ModelCheckpointOptions>, "FitOptions has no such part");
    return o.checkpoints;
  }
}

template <typename Value>
size_t kind_of() {
  return OptionValue(Value()).index();
}

/// The member takes the value as it is.
template <typename Part, typename T>
Destination to(T Part::*member) {
  using Value = typename ValueOf<T>::type;
  return {kind_of<Value>(), [member](FitOptions& o, const Option&, const OptionValue& value) {
            part_of<Part>(o).*member = std::get<Value>(value);
          }};
}

/// The member takes the result of parse(flag, text).
template <typename Part, typename T, typename Parse>
Destination to(T Part::*member, const Parse& parse) {
  return {kind_of<std::string>(),
          [member, parse](FitOptions& o, const Option& option, const OptionValue& value) {
            part_of<Part>(o).*member = parse(flag_of(option.name), std::get<std::string>(value));
          }};
}

/// The member takes the words between the commas.
inline Destination to_list(std::vector<std::string> FitOptions::*member) {
  return {kind_of<std::string>(), [member](FitOptions& o, const Option& option, const OptionValue& value) {
            o.*member = parse_list(flag_of(option.name), std::get<std::string>(value), option.choices);
          }};
}

/// Returns what `text` means to a mode.
template <typename T>
T parse_for_mode(const std::string& flag, const std::string& text) {
  if constexpr (std::is_same_v<T, std::string>) {
    return text;
  } else if constexpr (std::is_same_v<T, bool>) {
    return text == "true";
  } else if constexpr (std::is_same_v<T, Fp8Recipe>) {
    return parse_recipe(flag, text);
  } else if constexpr (std::is_same_v<T, Fp8Native>) {
    return fp8_native_of(text);
  } else if constexpr (std::is_same_v<T, at::ScalarType>) {
    for (const FormatInfo& format : formats())
      if (format.name == text && format.dtype) return *format.dtype;
    TORCH_CHECK_VALUE(false, flag, " '", text, "' is no dtype");
  } else {
    const ParsedNumber<T> parsed = parse_number<T>(text);
    TORCH_CHECK_VALUE(parsed.value, flag, " ", parsed.problem, parsed.is_out_of_range ? "" : ", or auto");
    return *parsed.value;
  }
}

/// "auto" leaves the member unset, because the mode has a default of its own.
template <typename T>
Destination to_mode(std::optional<T> PrecisionOptions::*member) {
  const auto set = [member](FitOptions& o, const Option& option, const OptionValue& value) {
    const auto& text = std::get<std::string>(value);
    auto& target = o.trainer.precision_options.*member;
    if (text == "auto")
      target.reset();
    else
      target = parse_for_mode<T>(flag_of(option.name), text);
  };
  return {kind_of<std::string>(), set, /*or_auto=*/true};
}

/// The words between the commas; "auto" leaves the member empty.
inline Destination to_mode(std::vector<std::string> PrecisionOptions::*member) {
  const auto set = [member](FitOptions& o, const Option& option, const OptionValue& value) {
    const auto& text = std::get<std::string>(value);
    auto& target = o.trainer.precision_options.*member;
    target = text == "auto" ? std::vector<std::string>() : parse_words(flag_of(option.name), text);
  };
  return {kind_of<std::string>(), set, /*or_auto=*/true};
}

}  // namespace mantissa::cli
