#include "mantissa/models/key_value_cache.h"

#include <string>

namespace mantissa::key_value_cache_test {
namespace {

at::Tensor some(int64_t positions, int64_t batch = 2) { return at::randn({batch, 3, positions, 4}); }

std::string error_of(KeyValueCache& cache, const at::Tensor& added) {
  try {
    cache.append(0, added, added);
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(KeyValueCache, KeepsWhatWasAppended) {
  KeyValueCache cache(5);
  const at::Tensor key = some(3), value = some(3), next_key = some(2), next_value = some(2);
  for (size_t layer : {0, 1}) cache.append(layer, key, value);
  EXPECT_EQ(cache.length(), 0) << "before advance()";
  cache.advance(3);
  const auto [keys, values] = cache.append(1, next_key, next_value);
  EXPECT_TRUE(at::equal(keys, at::cat({key, next_key}, 2)));
  EXPECT_TRUE(at::equal(values, at::cat({value, next_value}, 2)));
  cache.clear();
  EXPECT_TRUE(at::equal(cache.append(1, next_key, next_value).first, next_key));
}

TEST(KeyValueCache, APassThatFailedIsForgotten) {
  KeyValueCache cache(4);
  cache.append(0, some(2), some(2));  // and the second layer threw
  const at::Tensor again = some(3);
  EXPECT_TRUE(at::equal(cache.append(0, again, again).first, again));
}

TEST(KeyValueCache, RefusesWhatHasNoRoom) {
  EXPECT_THROW(KeyValueCache(0), c10::ValueError);
  KeyValueCache cache(3);
  cache.append(0, some(2), some(2));
  cache.advance(2);
  EXPECT_EQ(error_of(cache, some(1)), "no error");
  EXPECT_THAT(error_of(cache, some(2)),
              testing::HasSubstr("2 positions after 2 are more than its capacity of 3"));
  EXPECT_THAT(error_of(cache, some(1, 1)), testing::HasSubstr("it has 2 sequences, and 1 are added"));
}

TEST(KeyValueCache, PositionsAttendToTheirPastInAndOutOfTheCache) {
  const at::Tensor query = some(6), key = some(6), value = some(6);
  const at::Tensor whole = attend(causal_attention(query, key, value, {}));
  for (const int64_t first : {1, 2, 4, 5}) {  // the second part has 5, 4, 2 and 1 positions
    KeyValueCache cache(6);
    const auto part = [&](const at::Tensor& x) {
      return x.narrow(2, cache.length(), cache.length() ? 6 - first : first);
    };
    const at::Tensor before = attend(causal_attention(part(query), part(key), part(value), {&cache, 0}));
    cache.advance(first);
    const at::Tensor after = attend(causal_attention(part(query), part(key), part(value), {&cache, 0}));
    EXPECT_TRUE(at::allclose(at::cat({before, after}, 2), whole, 1e-5, 1e-6)) << first;
  }
}

}  // namespace
}  // namespace mantissa::key_value_cache_test
