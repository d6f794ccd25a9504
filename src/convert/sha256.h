// SHA-256 (FIPS 180-4), with the processor's instructions where it has them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>

namespace synod {

class Sha256 {
 public:
  void update(std::span<const std::byte> bytes);
  // Lower-case hexadecimal, 64 characters. The object is spent afterwards.
  std::string hex();

 private:
  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> block_{};
  size_t filled_ = 0;
  uint64_t total_ = 0;  // bytes
};

// Of a whole file, as the program sha256sum prints it. `on_read` hears of each piece's bytes and stops the
// reading (an empty result) by returning false. Throws kNotFound, kBadFile.
std::string sha256_of_file(const std::filesystem::path& path,
                           const std::function<bool(int64_t bytes)>& on_read = {});

// For tests: the portable compression function instead of the processor's.
void sha256_use_portable(bool portable);

}  // namespace synod
