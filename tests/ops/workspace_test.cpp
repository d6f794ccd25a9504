#include "ops/workspace.h"

#include <gtest/gtest.h>

namespace synod {
namespace {

TEST(Workspace, TensorsAreAlignedAndDoNotOverlap) {
  Workspace ws([](int64_t bytes) { return Buffer::host(bytes); });
  const Tensor a = ws.f32({3, 5}, "a");
  const Tensor b = ws.i32({7}, "b");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data) % 64, 0U);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data) % 64, 0U);
  EXPECT_GE(b.data, a.data + a.bytes());
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(b.type, DType::kI32);
}

TEST(Workspace, AScopeReturnsItsMemory) {
  Workspace ws([](int64_t bytes) { return Buffer::host(bytes); });
  const Tensor outer = ws.f32({16});
  std::byte* first = nullptr;
  {
    const Workspace::Scope scope(ws);
    first = ws.f32({100}).data;
    EXPECT_NE(first, outer.data);
  }
  const Workspace::Scope scope(ws);
  EXPECT_EQ(ws.f32({100}).data, first);
  EXPECT_EQ(ws.peak_bytes(), 64 + 448);  // rounded up to 64 bytes each, counted once
}

TEST(Workspace, AllocatesNothingMoreOnceTheLargestStepHasRun) {
  int n_allocations = 0;
  Workspace ws([&](int64_t bytes) {
    ++n_allocations;
    return Buffer::host(bytes);
  });
  const auto step = [&](int64_t n_tokens) {
    const Workspace::Scope scope(ws);
    ws.f32({n_tokens, 1000});
    for (int i = 0; i < 3; ++i) {
      const Workspace::Scope inner(ws);
      const Tensor t = ws.f32({n_tokens, 2000});
      t.as<float>()[t.size() - 1] = 1.0F;  // the memory is really there
    }
  };
  step(5000);
  const int after_largest = n_allocations;
  EXPECT_GE(after_largest, 2);
  for (const int64_t n : {1, 700, 5000, 4999}) step(n);
  EXPECT_EQ(n_allocations, after_largest);
}

TEST(Workspace, WithoutAnAllocatorOnlyThePeakIsCounted) {
  Workspace dry, real([](int64_t bytes) { return Buffer::host(bytes); });
  for (Workspace* ws : {&dry, &real}) {
    const Workspace::Scope scope(*ws);
    ws->f32({300, 7});
    {
      const Workspace::Scope inner(*ws);
      ws->i32({11});
    }
    ws->f32({1});
  }
  EXPECT_TRUE(dry.dry());
  EXPECT_EQ(dry.f32({4}).data, nullptr);
  EXPECT_EQ(dry.peak_bytes(), real.peak_bytes());
}

}  // namespace
}  // namespace synod
