#include "mantissa/core/state_dict.h"

#include <bit>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>

#include <torch/torch.h>

#include "mantissa/core/device.h"
#include "mantissa/core/test_support_internal.h"

namespace mantissa::state_dict_test {
namespace {

using testing::HasSubstr;

template <typename F>
std::string error_of(const F& f) {
  return mantissa::error_of<c10::ValueError>(f);
}

StateDict run() {
  const StateDict moments{{"exp_avg", at::ones({2})}, {"step", 3}};
  return {{"optimizers", StateList{StateDict{{"state", StateList{StateValue(), moments}}, {"lr", 0.1}}}},
          {"name", "mlp"},
          {"done", false}};
}

TEST(StateReader, NamesThePlaceOfEveryError) {
  const StateDict state = run();
  const StateReader reader(state);
  const StateReader entry = reader.at("optimizers").at(0).at("state").at(1);
  EXPECT_EQ(entry.path(), "optimizers.0.state.1");
  EXPECT_EQ(entry.at("step").to_int(), 3);
  EXPECT_EQ(error_of([&] { entry.at("exp_avg").to_int(); }),
            "optimizers.0.state.1.exp_avg: is a tensor; a whole number was expected");
  EXPECT_EQ(error_of([&] { entry.at("exp_avgs"); }),
            "optimizers.0.state.1: 'exp_avgs' is missing; did you mean 'exp_avg'?; there is exp_avg, step");
  EXPECT_EQ(error_of([&] { reader.at("optimizers").at(1); }), "optimizers: has no entry 1, only 1 of them");
  EXPECT_EQ(error_of([&] { reader.at("name").at("x"); }), "name: is text; a dict was expected");
  EXPECT_EQ(error_of([&] { reader.at("done").size(); }), "done: is a bool; a list or a dict was expected");
  EXPECT_EQ(error_of([&] { reader.to_list(); }), "the state: is a dict; a list was expected");
  EXPECT_EQ(error_of([&] { entry.at("step").to_int(0, 2); }),
            "optimizers.0.state.1.step: is 3; a number from 0 to 2 was expected");
  EXPECT_EQ(entry.at("step").to_count(), 3);
  EXPECT_EQ(entry.at("step").to_double(0, 3), 3.0);
  EXPECT_EQ(error_of([&] { entry.at("step").to_double(4, 5); }),
            "optimizers.0.state.1.step: is 3; a number from 4 to 5 was expected");
  const StateDict odd{{"count", kMaxCount + 1}, {"seconds", std::numeric_limits<double>::quiet_NaN()}};
  EXPECT_EQ(error_of([&] { StateReader(odd).at("count").to_count(); }),
            "count: is 9007199254740993; a number from 0 to 9007199254740992 was expected");
  EXPECT_EQ(error_of([&] { StateReader(odd).at("seconds").to_double(0, 1); }),
            "seconds: is nan; a number from 0 to 1 was expected");
  EXPECT_EQ(error_of([&] { entry.at("step").to_bool(); }),
            "optimizers.0.state.1.step: is a whole number; a bool was expected");
  EXPECT_EQ(error_of([] { StateReader(StateDict{}, "scaler").at("scale"); }),
            "scaler: 'scale' is missing; there is nothing");
  EXPECT_EQ(error_of([&] { reader.at("name").fail("is no model"); }), "name: is no model");
}

TEST(StateReader, FindsWhatThereIs) {
  const StateDict state = run();
  const StateReader reader(state);
  EXPECT_FALSE(reader.find("scaler").has_value());
  EXPECT_EQ(reader.find("name")->to_string(), "mlp");
  EXPECT_TRUE(reader.at("optimizers").at(0).at("state").at(0).is_null());
  EXPECT_FALSE(reader.is_null());
  EXPECT_EQ(reader.size(), 3u);
  EXPECT_EQ(reader.at("optimizers").size(), 1u);
  const StateValue whole = 7;
  EXPECT_EQ(StateReader(whole).to_double(), 7.0);
}

TEST(StateValue, KeepsTheKindOfEveryNumber) {
  EXPECT_NE(StateValue(true).get_if<bool>(), nullptr);
  EXPECT_NE(StateValue(int16_t{-3}).get_if<int64_t>(), nullptr);
  EXPECT_EQ(*StateValue(uint64_t{1} << 62).get_if<int64_t>(), int64_t{1} << 62);
  EXPECT_NE(StateValue(1.0F).get_if<double>(), nullptr);
  EXPECT_NE(StateValue("text").get_if<std::string>(), nullptr);
  EXPECT_TRUE(StateValue().is_null());
  EXPECT_THAT(error_of([] { StateValue(std::numeric_limits<uint64_t>::max()); }),
              HasSubstr("18446744073709551615 is above 2^63 - 1"));
  EXPECT_THAT(error_of([] { StateValue(at::Tensor()); }), HasSubstr("undefined; leave its entry out"));
}

TEST(StateDifference, SaysWhereAndHow) {
  const auto differ = [](StateValue a, StateValue b) {
    return difference({{"x", std::move(a)}}, {{"x", std::move(b)}});
  };
  EXPECT_EQ(difference(run(), run()), "");
  EXPECT_EQ(differ(1, 1.0), "x: a whole number and a floating-point number");
  EXPECT_EQ(differ(1, 2), "x: 1 and 2");
  EXPECT_EQ(differ(true, false), "x: true and false");
  EXPECT_EQ(differ("a", "b"), "x: 'a' and 'b'");
  EXPECT_EQ(differ(0.0, -0.0), "x: 0 (0x0000000000000000) and -0 (0x8000000000000000)");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(differ(nan, nan), "");
  EXPECT_THAT(differ(nan, std::bit_cast<double>(std::bit_cast<uint64_t>(nan) | 1)),
              HasSubstr("0x7ff8000000000001"));
  EXPECT_EQ(differ(StateList{1, 2}, StateList{1, 3}), "x.1: 2 and 3");
  EXPECT_EQ(differ(StateList{1}, StateList{}), "x: a list of 1 and one of 0");
  EXPECT_EQ(difference({{"a", 1}}, {}), "a: only in the first");
  EXPECT_EQ(difference({}, {{"a", StateDict{}}}), "a: only in the second");
  EXPECT_EQ(differ(at::ones({2}), at::ones({2}, at::kDouble)), "x: a tensor Float[2] and one Double[2]");
  EXPECT_EQ(differ(at::ones({3}), at::tensor({1.0F, 1.0F, 2.0F})),
            "x: tensors Float[3] whose values differ, first at element 2");
  EXPECT_EQ(differ(at::full({2}, nan), at::full({2}, nan)), "");
  EXPECT_NE(differ(at::zeros({1}), -at::zeros({1})), "");
  EXPECT_EQ(differ(at::empty({0, 3}), at::empty({0, 3})), "");
  // Values are compared, not layouts.
  const at::Tensor square = at::arange(4).reshape({2, 2});
  EXPECT_EQ(differ(square.t().contiguous(), square.t()), "");
}

TEST(StateSnapshot, SharesNoMemoryAndShowsWhatAViewShows) {
  const at::Tensor weight = at::arange(6, at::kFloat).reshape({2, 3}).set_requires_grad(true);
  const at::Tensor complex = at::complex(at::ones({2}), at::ones({2}));
  StateDict state{{"w", weight.t()},
                  {"list", StateList{weight, at::Tensor(weight.detach()[0].expand({4, 3}))}},
                  {"conjugate", complex.conj()},
                  {"step", 3}};
  const StateDict want{
      {"w", weight.detach().clone().t()},
      {"list", StateList{weight.detach().clone(), weight.detach()[0].expand({4, 3}).clone()}},
      {"conjugate", at::complex(at::ones({2}), -at::ones({2}))},
      {"step", 3}};
  const StateDict copy = snapshot(state);
  weight.detach().zero_();
  complex.zero_();
  EXPECT_EQ(difference(copy, want), "");
  const StateReader reader(copy);
  EXPECT_FALSE(reader.at("w").to_tensor().requires_grad());
  EXPECT_TRUE(reader.at("w").to_tensor().is_contiguous());
  EXPECT_FALSE(reader.at("conjugate").to_tensor().is_conj());
}

TEST(StateSnapshot, BringsCudaTensorsToTheCpu) {
  if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  const at::Tensor weight = at::arange(6, at::kFloat).cuda();
  const StateDict copy = snapshot(StateDict{{"w", weight}});
  EXPECT_TRUE(StateReader(copy).at("w").to_tensor().is_cpu());
  EXPECT_EQ(difference(copy, {{"w", weight}}), "");
}

TEST(StateScalars, GoThereAndBack) {
  const std::map<std::string, at::Scalar> scalars = {
      {"scale", 65536.0}, {"_growth_tracker", int64_t{7}}, {"on", true}};
  const StateDict state = scalars_to_state(scalars);
  EXPECT_EQ(difference(state, {{"scale", 65536.0}, {"_growth_tracker", 7}, {"on", true}}), "");
  const auto back = scalars_from_state(StateReader(state));
  ASSERT_EQ(back.size(), 3u);
  EXPECT_TRUE(back.at("scale").isFloatingPoint());
  EXPECT_TRUE(back.at("_growth_tracker").isIntegral(false));
  EXPECT_TRUE(back.at("on").isBoolean());
  EXPECT_EQ(difference(scalars_to_state(back), state), "");
  EXPECT_THAT(error_of([] {
                scalars_to_state({{"z", c10::complex<double>(1, 2)}});
              }),
              HasSubstr("'z' is complex"));
  EXPECT_EQ(error_of([] {
              scalars_from_state(StateReader(StateDict{{"scale", "high"}}, "precision"));
            }),
            "precision.scale: is text; a number was expected");
}

}  // namespace
}  // namespace mantissa::state_dict_test
