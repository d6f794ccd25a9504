#include "convert/sha256.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace synod {
namespace {

constexpr size_t kBlock = 64;

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
alignas(16) constexpr std::array<uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t big_endian(const std::byte* p) {
  uint32_t v;
  std::memcpy(&v, p, sizeof(v));
  return __builtin_bswap32(v);
}

void compress_portable(std::array<uint32_t, 8>& state, const std::byte* data, size_t n_blocks) {
  for (; n_blocks > 0; --n_blocks, data += kBlock) {
    std::array<uint32_t, 64> w;
    for (size_t i = 0; i < 16; ++i) w[i] = big_endian(data + 4 * i);
    for (size_t i = 16; i < 64; ++i) {
      const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
      const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
      w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    auto [a, b, c, d, e, f, g, h] = state;
    for (size_t i = 0; i < 64; ++i) {
      const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
      const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
      const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
      const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    const std::array<uint32_t, 8> mixed = {a, b, c, d, e, f, g, h};
    for (size_t i = 0; i < 8; ++i) state[i] += mixed[i];
  }
}

#if defined(__x86_64__)
bool has_sha_instructions() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (b & (1U << 29)) == 0) return false;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & (1U << 19)) != 0;  // SSE4.1
}

// The instructions keep the state as (a, b, e, f) and (c, d, g, h) and do two rounds each.
__attribute__((target("sha,sse4.1"))) void compress_x86(std::array<uint32_t, 8>& state, const std::byte* data,
                                                        size_t n_blocks) {
  const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
  const auto* words = reinterpret_cast<const __m128i*>(state.data());
  const __m128i abcd = _mm_shuffle_epi32(_mm_loadu_si128(words), 0xb1);      // b a d c
  const __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128(words + 1), 0x1b);  // h g f e
  __m128i abef = _mm_alignr_epi8(abcd, efgh, 8);
  __m128i cdgh = _mm_blend_epi16(efgh, abcd, 0xf0);
  for (; n_blocks > 0; --n_blocks, data += kBlock) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[4];
    for (int i = 0; i < 4; ++i) {
      w[i] = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data) + i), swap);
    }
    for (int i = 0; i < 16; ++i) {
      const __m128i now = w[i & 3];
      __m128i k = _mm_add_epi32(now, _mm_load_si128(reinterpret_cast<const __m128i*>(kRound.data()) + i));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, k);
      k = _mm_shuffle_epi32(k, 0x0e);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, k);
      if (i < 12) {  // the four words that come 16 later
        __m128i next = _mm_sha256msg1_epu32(now, w[(i + 1) & 3]);
        next = _mm_add_epi32(next, _mm_alignr_epi8(w[(i + 3) & 3], w[(i + 2) & 3], 4));
        w[i & 3] = _mm_sha256msg2_epu32(next, w[(i + 3) & 3]);
      }
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1b);
  const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xb1);
  auto* out = reinterpret_cast<__m128i*>(state.data());
  _mm_storeu_si128(out, _mm_blend_epi16(feba, dchg, 0xf0));
  _mm_storeu_si128(out + 1, _mm_alignr_epi8(dchg, feba, 8));
}
#endif

std::atomic<bool> g_portable{false};

void compress(std::array<uint32_t, 8>& state, const std::byte* data, size_t n_blocks) {
#if defined(__x86_64__)
  static const bool kHardware = has_sha_instructions();
  if (kHardware && !g_portable) return compress_x86(state, data, n_blocks);
#endif
  compress_portable(state, data, n_blocks);
}

}  // namespace

void sha256_use_portable(bool portable) { g_portable = portable; }

void Sha256::update(std::span<const std::byte> bytes) {
  total_ += bytes.size();
  if (filled_ > 0) {
    const size_t n = std::min(kBlock - filled_, bytes.size());
    std::copy_n(bytes.begin(), n, block_.begin() + static_cast<ptrdiff_t>(filled_));
    filled_ += n;
    bytes = bytes.subspan(n);
    if (filled_ < kBlock) return;
    compress(state_, block_.data(), 1);
    filled_ = 0;
  }
  const size_t n_blocks = bytes.size() / kBlock;
  compress(state_, bytes.data(), n_blocks);
  bytes = bytes.subspan(n_blocks * kBlock);
  std::copy(bytes.begin(), bytes.end(), block_.begin());
  filled_ = bytes.size();
}

std::string Sha256::hex() {
  const uint64_t bits = total_ * 8;
  std::vector<std::byte> tail = {std::byte{0x80}};
  while ((filled_ + tail.size()) % kBlock != kBlock - 8) tail.push_back(std::byte{0});
  for (int shift = 56; shift >= 0; shift -= 8) tail.push_back(static_cast<std::byte>(bits >> shift));
  update(tail);
  std::string text;
  for (const uint32_t word : state_) text += fmt::format("{:08x}", word);
  return text;
}

std::string sha256_of_file(const std::filesystem::path& path,
                           const std::function<bool(int64_t bytes)>& on_read) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ENOENT) fail(Error::Kind::kNotFound, "{}: no such file", path.string());
    bad_file("{}: cannot open: {}", path.string(), std::strerror(errno));
  }
  Sha256 hash;
  std::vector<std::byte> buffer(size_t{1} << 20);
  while (true) {
    const ssize_t n = ::read(fd, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int error = errno;
      ::close(fd);
      bad_file("{}: cannot read: {}", path.string(), std::strerror(error));
    }
    if (n == 0) break;
    hash.update(std::span(buffer).first(static_cast<size_t>(n)));
    if (on_read && !on_read(n)) {
      ::close(fd);
      return {};
    }
  }
  ::close(fd);
  return hash.hex();
}

}  // namespace synod
