#pragma once

// The values that low-bit codes stand for. Each value is multiplied by the scale of its block. The kernels of
// every CPU tier include this header, so it includes nothing of torch and no container.

#include <bit>
#include <cstdint>

namespace mantissa {

/// The value of each NF4 code, ascending: quantiles of the normal distribution, divided by the largest.
/// Source: Dettmers et al. 2023, arXiv:2305.14314, appendix E; the bits are bitsandbytes's.
inline constexpr float kNF4Values[16] = {
    -1.0F,      -0.6961928F, -0.52507305F, -0.3949175F, -0.28444138F, -0.18477343F, -0.091050036F, 0.0F,
    0.0795803F, 0.1609302F,  0.2461123F,   0.33791524F, 0.44070983F,  0.562617F,    0.72295684F,   1.0F};

/// x / absmax has code i if it is above i of these and not above the next: a tie goes to the lower code.
/// They are bitsandbytes's constants for CUDA; some differ from the midpoints of kNF4Values in the last bit.
inline constexpr float kNF4Thresholds[15] = {-0.8480964F, -0.6106329F,  -0.45999527F,  -0.33967942F,
                                             -0.2346074F, -0.13791174F, -0.045525018F, 0.03979015F,
                                             0.12025525F, 0.20352125F,  0.29201376F,   0.38931254F,
                                             0.50166345F, 0.6427869F,   0.86147845F};

/// The value of each FP4 code: a sign (bit 3), two bits of exponent and one of mantissa, divided by 12. The
/// order of the codes is not that of the values. Code 8 stands for zero, too.
/// Source: bitsandbytes. NVFP4 and MXFP4 have another format.
inline constexpr float kFP4Values[16] = {
    0.0F, 0.0052083335F,  0.6666667F,  1.0F,  0.33333334F,  0.5F,  0.16666667F,  0.25F,
    0.0F, -0.0052083335F, -0.6666667F, -1.0F, -0.33333334F, -0.5F, -0.16666667F, -0.25F};

/// |x| / absmax has code kFP4Magnitudes[i] if it is above i of these: a tie goes to the smaller magnitude.
inline constexpr float kFP4Thresholds[7] = {0.00260417F, 0.0859375F, 0.20833333F, 0.29166666F,
                                            0.4166667F,  0.583333F,  0.8333333F};
inline constexpr uint8_t kFP4Magnitudes[8] = {0, 1, 6, 7, 4, 5, 2, 3};

/// The dynamic map for values of both signs, ascending; code 127 stands for 0 and code 255 for 1. There is no
/// -1: the smallest value is -0.99296874.
/// Source: Dettmers 2016, arXiv:1511.04561, and Dettmers et al. 2022, arXiv:2110.02861; the bits are
///         bitsandbytes's.
inline constexpr float kDynamicSigned[256] = {
    -0.99296874F,    -0.9789063F,     -0.96484375F,    -0.9507812F,
    -0.93671876F,    -0.92265624F,    -0.9085938F,     -0.89453125F,
    -0.8804687F,     -0.86640626F,    -0.85234374F,    -0.8382813F,
    -0.82421875F,    -0.8101562F,     -0.79609376F,    -0.78203124F,
    -0.7679688F,     -0.75390625F,    -0.7398437F,     -0.72578126F,
    -0.7117188F,     -0.6976563F,     -0.68359375F,    -0.6695312F,
    -0.65546876F,    -0.6414063F,     -0.6273438F,     -0.61328125F,
    -0.5992187F,     -0.58515626F,    -0.5710938F,     -0.5570313F,
    -0.54296875F,    -0.5289062F,     -0.5148437F,     -0.50078124F,
    -0.4867187F,     -0.47265625F,    -0.45859373F,    -0.44453126F,
    -0.43046874F,    -0.41640624F,    -0.40234375F,    -0.38828123F,
    -0.37421876F,    -0.36015624F,    -0.34609374F,    -0.33203125F,
    -0.31796873F,    -0.30390626F,    -0.28984374F,    -0.27578127F,
    -0.26171875F,    -0.24765624F,    -0.23359375F,    -0.21953125F,
    -0.20546874F,    -0.19140625F,    -0.17734376F,    -0.16328125F,
    -0.14921875F,    -0.13515624F,    -0.12109375F,    -0.107031256F,
    -0.09859375F,    -0.09578126F,    -0.092968754F,   -0.09015625F,
    -0.08734375F,    -0.08453125F,    -0.08171876F,    -0.07890625F,
    -0.07609375F,    -0.07328125F,    -0.070468746F,   -0.067656256F,
    -0.06484375F,    -0.06203125F,    -0.059218753F,   -0.05640625F,
    -0.05359375F,    -0.05078125F,    -0.04796875F,    -0.04515625F,
    -0.042343747F,   -0.03953125F,    -0.036718752F,   -0.03390625F,
    -0.03109375F,    -0.028281251F,   -0.02546875F,    -0.02265625F,
    -0.019843752F,   -0.01703125F,    -0.01421875F,    -0.01140625F,
    -0.00971875F,    -0.009156249F,   -0.00859375F,    -0.00803125F,
    -0.00746875F,    -0.00690625F,    -0.00634375F,    -0.00578125F,
    -0.0052187503F,  -0.0046562497F,  -0.00409375F,    -0.0035312497F,
    -0.00296875F,    -0.00240625F,    -0.00184375F,    -0.0012812499F,
    -0.0009437501F,  -0.00083125F,    -0.00071875006F, -0.0006062501F,
    -0.00049375003F, -0.00038125002F, -0.00026875004F, -0.00015625001F,
    -8.875e-5F,      -6.625e-5F,      -4.375e-5F,      -2.1249998e-5F,
    -7.75e-6F,       -3.2500002e-6F,  -5.5000004e-7F,  0.0F,
    5.5000004e-7F,   3.2500002e-6F,   7.75e-6F,        2.1249998e-5F,
    4.375e-5F,       6.625e-5F,       8.875e-5F,       0.00015625001F,
    0.00026875004F,  0.00038125002F,  0.00049375003F,  0.0006062501F,
    0.00071875006F,  0.00083125F,     0.0009437501F,   0.0012812499F,
    0.00184375F,     0.00240625F,     0.00296875F,     0.0035312497F,
    0.00409375F,     0.0046562497F,   0.0052187503F,   0.00578125F,
    0.00634375F,     0.00690625F,     0.00746875F,     0.00803125F,
    0.00859375F,     0.009156249F,    0.00971875F,     0.01140625F,
    0.01421875F,     0.01703125F,     0.019843752F,    0.02265625F,
    0.02546875F,     0.028281251F,    0.03109375F,     0.03390625F,
    0.036718752F,    0.03953125F,     0.042343747F,    0.04515625F,
    0.04796875F,     0.05078125F,     0.05359375F,     0.05640625F,
    0.059218753F,    0.06203125F,     0.06484375F,     0.067656256F,
    0.070468746F,    0.07328125F,     0.07609375F,     0.07890625F,
    0.08171876F,     0.08453125F,     0.08734375F,     0.09015625F,
    0.092968754F,    0.09578126F,     0.09859375F,     0.107031256F,
    0.12109375F,     0.13515624F,     0.14921875F,     0.16328125F,
    0.17734376F,     0.19140625F,     0.20546874F,     0.21953125F,
    0.23359375F,     0.24765624F,     0.26171875F,     0.27578127F,
    0.28984374F,     0.30390626F,     0.31796873F,     0.33203125F,
    0.34609374F,     0.36015624F,     0.37421876F,     0.38828123F,
    0.40234375F,     0.41640624F,     0.43046874F,     0.44453126F,
    0.45859373F,     0.47265625F,     0.4867187F,      0.50078124F,
    0.5148437F,      0.5289062F,      0.54296875F,     0.5570313F,
    0.5710938F,      0.58515626F,     0.5992187F,      0.61328125F,
    0.6273438F,      0.6414063F,      0.65546876F,     0.6695312F,
    0.68359375F,     0.6976563F,      0.7117188F,      0.72578126F,
    0.7398437F,      0.75390625F,     0.7679688F,      0.78203124F,
    0.79609376F,     0.8101562F,      0.82421875F,     0.8382813F,
    0.85234374F,     0.86640626F,     0.8804687F,      0.89453125F,
    0.9085938F,      0.92265624F,     0.93671876F,     0.9507812F,
    0.96484375F,     0.9789063F,      0.99296874F,     1.0F};

/// The dynamic map for values that are never negative, ascending; code 0 stands for 0 and code 255 for 1.
inline constexpr float kDynamicUnsigned[256] = {
    0.0F,           3.2500003e-7F,  7.75e-7F,       2.1249998e-6F,
    4.3749997e-6F,  6.625e-6F,      8.874999e-6F,   1.5624999e-5F,
    2.6875001e-5F,  3.8125e-5F,     4.9374998e-5F,  6.0625003e-5F,
    7.1875e-5F,     8.312499e-5F,   9.4375e-5F,     0.000128125F,
    0.000184375F,   0.00024062501F, 0.00029687502F, 0.00035312498F,
    0.00040937503F, 0.00046562502F, 0.00052187504F, 0.000578125F,
    0.000634375F,   0.00069062505F, 0.000746875F,   0.0008031251F,
    0.00085937505F, 0.000915625F,   0.00097187504F, 0.001140625F,
    0.001421875F,   0.001703125F,   0.001984375F,   0.002265625F,
    0.0025468748F,  0.002828125F,   0.0031093748F,  0.0033906251F,
    0.003671875F,   0.003953125F,   0.0042343745F,  0.004515625F,
    0.0047968747F,  0.005078125F,   0.005359375F,   0.0056406246F,
    0.005921875F,   0.0062031248F,  0.006484375F,   0.0067656254F,
    0.0070468746F,  0.007328125F,   0.0076093744F,  0.007890625F,
    0.008171875F,   0.008453124F,   0.008734375F,   0.009015624F,
    0.0092968745F,  0.009578126F,   0.009859375F,   0.010703126F,
    0.012109376F,   0.013515624F,   0.014921876F,   0.016328124F,
    0.017734377F,   0.019140625F,   0.020546874F,   0.021953126F,
    0.023359375F,   0.024765624F,   0.026171876F,   0.027578129F,
    0.028984373F,   0.030390626F,   0.031796873F,   0.033203125F,
    0.034609374F,   0.036015626F,   0.03742188F,    0.038828123F,
    0.040234376F,   0.041640624F,   0.043046873F,   0.044453125F,
    0.045859374F,   0.047265626F,   0.04867187F,    0.050078124F,
    0.051484372F,   0.052890625F,   0.054296877F,   0.05570313F,
    0.057109382F,   0.058515627F,   0.059921872F,   0.061328124F,
    0.06273438F,    0.06414063F,    0.06554688F,    0.06695312F,
    0.068359375F,   0.06976563F,    0.07117188F,    0.072578125F,
    0.07398438F,    0.07539063F,    0.07679688F,    0.07820313F,
    0.07960938F,    0.081015624F,   0.08242188F,    0.08382813F,
    0.085234374F,   0.086640626F,   0.08804687F,    0.08945312F,
    0.090859376F,   0.09226563F,    0.09367188F,    0.095078126F,
    0.09648438F,    0.09789063F,    0.099296875F,   0.103515625F,
    0.11054687F,    0.11757813F,    0.12460937F,    0.13164061F,
    0.13867188F,    0.14570314F,    0.15273437F,    0.15976563F,
    0.16679686F,    0.17382812F,    0.18085939F,    0.18789062F,
    0.19492188F,    0.20195311F,    0.20898438F,    0.21601564F,
    0.22304687F,    0.23007813F,    0.23710936F,    0.24414062F,
    0.25117186F,    0.25820312F,    0.26523438F,    0.2722656F,
    0.27929688F,    0.28632814F,    0.29335937F,    0.3003906F,
    0.30742186F,    0.31445312F,    0.3214844F,     0.32851562F,
    0.33554685F,    0.3425781F,     0.34960938F,    0.35664064F,
    0.36367187F,    0.3707031F,     0.37773436F,    0.38476562F,
    0.3917969F,     0.39882812F,    0.40585935F,    0.4128906F,
    0.41992188F,    0.42695314F,    0.43398437F,    0.4410156F,
    0.44804686F,    0.45507812F,    0.4621094F,     0.46914062F,
    0.47617185F,    0.4832031F,     0.49023438F,    0.4972656F,
    0.5042969F,     0.5113281F,     0.51835936F,    0.5253906F,
    0.5324218F,     0.53945315F,    0.54648435F,    0.5535157F,
    0.5605469F,     0.56757814F,    0.5746094F,     0.5816406F,
    0.5886719F,     0.5957031F,     0.6027344F,     0.60976565F,
    0.61679685F,    0.6238282F,     0.6308594F,     0.63789064F,
    0.6449219F,     0.6519531F,     0.6589844F,     0.6660156F,
    0.6730469F,     0.68007815F,    0.68710935F,    0.6941407F,
    0.7011719F,     0.70820314F,    0.7152344F,     0.7222656F,
    0.7292969F,     0.7363281F,     0.7433594F,     0.75039065F,
    0.75742185F,    0.7644532F,     0.7714844F,     0.7785156F,
    0.7855469F,     0.7925781F,     0.7996094F,     0.8066406F,
    0.8136718F,     0.82070315F,    0.82773435F,    0.8347657F,
    0.8417969F,     0.8488281F,     0.8558594F,     0.8628906F,
    0.8699219F,     0.8769531F,     0.8839843F,     0.89101565F,
    0.89804685F,    0.9050782F,     0.9121094F,     0.9191406F,
    0.9261719F,     0.9332031F,     0.9402344F,     0.9472656F,
    0.9542968F,     0.96132815F,    0.96835935F,    0.9753907F,
    0.9824219F,     0.9894531F,     0.9964844F,     1.0F};

/// The signed dynamic map with 16 values, ascending; code 7 stands for 0. There is no -1. 4-bit optimizers keep
/// their first moment in it. Their second moment has the values (code + 1) / 16, of which none is 0.
/// Source: Li et al. 2023, arXiv:2309.01507; the bits are torchao's.
inline constexpr float kDynamic4Signed[16] = {
    -0.88749999F, -0.66250002F, -0.4375F, -0.21249999F, -0.0775F, -0.032500003F, -0.0055F,    0.0F,
    0.0055F,      0.032500003F, 0.0775F,  0.21249999F,  0.4375F,  0.66250002F,   0.88749999F, 1.0F};

/// Returns the least float that has `code`, from 1 on, in kDynamic4Signed. torchao rounds up from half of the
/// distance of two values on, where all numbers are float32.
constexpr float least_of_dynamic4_code(int code) {
  const float low = kDynamic4Signed[code - 1], half = (kDynamic4Signed[code] - low) * 0.5F;
  const auto moved = [](float x, bool up) {
    return std::bit_cast<float>(std::bit_cast<uint32_t>(x) + (up == (x > 0) ? 1U : 0xffffffffU));
  };
  float x = low + half;
  while (x - low >= half) x = moved(x, false);
  while (!(x - low >= half)) x = moved(x, true);
  return x;
}

/// Returns the code of the value in the ascending `table` of 256 that is nearest to `x`. A tie goes to the lower
/// code, and NaN has code 0. This function defines the kernels' results.
constexpr uint8_t nearest_code(const float (&table)[256], float x) {
  int code = 0;
  for (int half = 128; half > 0; half /= 2)
    // In double the midpoint is exact.
    if (x > (static_cast<double>(table[code + half - 1]) + table[code + half]) / 2) code += half;
  return static_cast<uint8_t>(code);
}

/// Returns the NF4 code of `x`, which is divided by its block's absmax already. NaN has code 0.
constexpr uint8_t nf4_code(float x) {
  int code = 0;
  for (const float threshold : kNF4Thresholds) code += x > threshold;
  return static_cast<uint8_t>(code);
}

/// Returns the FP4 code of `x`, which is divided by its block's absmax already. A tiny negative number has
/// code 8; 0, -0 and NaN have code 0.
constexpr uint8_t fp4_code(float x) {
  const float magnitude = x < 0 ? -x : x;
  int place = 0;
  for (const float threshold : kFP4Thresholds) place += magnitude > threshold;
  return static_cast<uint8_t>(kFP4Magnitudes[place] | (x < 0 ? 8 : 0));
}

}  // namespace mantissa
