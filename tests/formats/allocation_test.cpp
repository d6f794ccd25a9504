// Hostile counts must not become allocations. The test program's operator new records the largest request.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "formats/test_files.h"

namespace {
std::atomic<size_t> g_largest{0};

void* counted(size_t bytes) {
  size_t seen = g_largest.load();
  while (seen < bytes && !g_largest.compare_exchange_weak(seen, bytes)) {
  }
  void* p = std::malloc(bytes == 0 ? 1 : bytes);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
}  // namespace

void* operator new(size_t bytes) { return counted(bytes); }
void* operator new[](size_t bytes) { return counted(bytes); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }

namespace synod {
namespace {

using test::bytes_of;
using test::GgufBytes;

constexpr size_t kAllowed = 4096;  // messages and small containers; the files below are smaller than this

template <typename F>
size_t largest_allocation(F&& f) {
  g_largest = 0;
  try {
    f();
  } catch (const Error&) {
  }
  return g_largest;
}

TEST(Allocation, GgufCountsAreComparedWithTheFileFirst) {
  for (uint32_t type = 0; type <= 12; ++type) {
    for (const uint64_t count : {uint64_t{1} << 20, uint64_t{1} << 30, uint64_t{1} << 31,
                                 (uint64_t{1} << 63) - 1, ~uint64_t{0} / 8 + 2, ~uint64_t{0}}) {
      GgufBytes hostile;
      hostile.key("a", 9, GgufBytes::raw(type) + GgufBytes::raw(count) + std::string(64, '\0'));
      const std::string bytes = hostile.build();
      EXPECT_LE(largest_allocation([&] { GgufFile::parse(bytes_of(bytes), "x"); }), kAllowed)
          << type << " " << count;
    }
  }
}

TEST(Allocation, GgufHeaderFieldsAreComparedWithTheFileFirst) {
  const test::QuietLog quiet;
  GgufBytes g;
  g.key_string("s", "text").tensor("w", {4}, 0, std::string(16, '\0'));
  const std::string good = g.build();
  for (const GgufBytes::Field& field : g.fields) {
    for (const uint64_t extreme :
         {uint64_t{1} << 31, uint64_t{64} << 20, (uint64_t{1} << 63) - 1, ~uint64_t{0}}) {
      std::string bytes = good;
      std::memcpy(bytes.data() + field.offset, &extreme, field.bytes);
      EXPECT_LE(largest_allocation([&] { GgufFile::parse(bytes_of(bytes), "x"); }), kAllowed) << field.name;
    }
  }
}

TEST(Allocation, SafetensorsHeaderLengthIsComparedWithTheFileFirst) {
  for (const uint64_t length :
       {uint64_t{1} << 26, uint64_t{1} << 31, (uint64_t{1} << 63) - 1, ~uint64_t{0}}) {
    const std::string bytes = GgufBytes::raw(length) + "{}";
    EXPECT_LE(largest_allocation([&] { SafetensorsFile::parse(bytes_of(bytes), "x"); }), kAllowed);
  }
}

TEST(Allocation, TheRecorderWorks) {
  EXPECT_GE(largest_allocation([] {
              std::vector<char> v(100'000);
              static_cast<void>(v.data());
            }),
            100'000U);
}

}  // namespace
}  // namespace synod
