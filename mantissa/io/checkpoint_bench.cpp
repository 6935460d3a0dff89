// Compares the cost of a checkpoint's checksum with that of zlib's, and both with copying the bytes.
//   io_bench
#include <benchmark/benchmark.h>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>
#include <zlib.h>

#include "mantissa/io/checksum.h"

namespace mantissa {
namespace {

constexpr size_t kBytes = size_t{1} << 26;  // larger than any cache

const std::string& content() {
  static const std::string bytes = [] {
    std::string text(kBytes, '\0');
    for (size_t i = 0; i < kBytes; ++i) text[i] = char(i * 2654435761U >> 13);
    return text;
  }();
  return bytes;
}

void report(benchmark::State& state) { state.SetBytesProcessed(int64_t(state.iterations() * kBytes)); }

void BM_Xxh3(benchmark::State& state) {
  // Piece by piece, as files are written and read, gives the same result as all at once.
  Checksum pieces;
  for (size_t at = 0; at < kBytes; at += 1 << 20) pieces.update(content().data() + at, 1 << 20);
  if (pieces.hex() != checksum_of(content())) return state.SkipWithError("wrong checksum");
  for (auto unused : state) benchmark::DoNotOptimize(checksum_of(content()));
  report(state);
}
BENCHMARK(BM_Xxh3)->Unit(benchmark::kMillisecond);

void BM_Crc32OfZlib(benchmark::State& state) {
  const auto* bytes = reinterpret_cast<const Bytef*>(content().data());
  const char* check = "123456789";
  if (crc32_z(0, reinterpret_cast<const Bytef*>(check), 9) != 0xCBF43926)
    return state.SkipWithError("wrong checksum");
  for (auto unused : state) benchmark::DoNotOptimize(crc32_z(0, bytes, kBytes));
  report(state);
}
BENCHMARK(BM_Crc32OfZlib)->Unit(benchmark::kMillisecond);

void BM_Copy(benchmark::State& state) {
  std::vector<char> copy(kBytes);
  for (auto unused : state) {
    std::memcpy(copy.data(), content().data(), kBytes);
    benchmark::ClobberMemory();
  }
  if (std::memcmp(copy.data(), content().data(), kBytes) != 0) return state.SkipWithError("wrong copy");
  report(state);
}
BENCHMARK(BM_Copy)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace mantissa
