#include "wrap/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "ref/ref_backend.h"
#include "wrap/small_step.h"

namespace synod {
namespace {

using testing::SmallStep;

const Trace::Row* find(const std::vector<Trace::Row>& rows, std::string_view part, std::string_view op) {
  const auto it =
      std::ranges::find_if(rows, [&](const Trace::Row& r) { return r.part == part && r.op == op; });
  return it == rows.end() ? nullptr : &*it;
}

TEST(Trace, CountsCallsAndBytesPerPartAndLeavesResultsAlone) {
  SmallStep plain, traced;
  RefBackend be, inner;
  plain.run(be);
  Trace trace(inner);
  traced.run(trace);
  traced.run(trace);
  EXPECT_EQ(traced.out(), plain.out());
  const std::vector<Trace::Row> rows = trace.rows();
  int64_t calls = 0;
  for (const Trace::Row& row : rows) calls += row.calls;
  EXPECT_EQ(calls, 2 * SmallStep::kOps) << "a fused op counts once";
  const Trace::Row* linear = find(rows, "experts", "linear");
  ASSERT_NE(linear, nullptr);
  EXPECT_EQ(linear->calls, 2);
  // Weight, input and output, f32.
  EXPECT_EQ(linear->bytes, 2 * 4 * (4 * 32 + 5 * 32 + 5 * 4));
  EXPECT_EQ(find(rows, "attention", "linear"), nullptr);
  EXPECT_TRUE(std::ranges::is_sorted(rows, [](const auto& a, const auto& b) { return a.ns > b.ns; }));
}

TEST(Trace, TheTableHasAShareOfTheCeilingOnRequest) {
  SmallStep step;
  RefBackend inner;
  Trace trace(inner);
  step.run(trace);
  EXPECT_NE(trace.table({}).find("expert_ffn"), std::string::npos);
  EXPECT_EQ(trace.table({}).find("ceiling"), std::string::npos);
  EXPECT_NE(trace.table({.gb_s = 100.0}).find("ceiling"), std::string::npos);
}

TEST(Trace, WritesAChromeTrace) {
  SmallStep step;
  RefBackend inner;
  Trace trace(inner, true);
  step.run(trace);
  const std::string path = ::testing::TempDir() + "/synod_trace_test.json";
  trace.write_chrome_trace(path);
  std::ifstream in(path);
  const auto events = nlohmann::json::parse(in).at("traceEvents");
  ASSERT_EQ(events.size(), static_cast<size_t>(SmallStep::kOps));
  EXPECT_EQ(events[5].at("name"), "linear");
  EXPECT_EQ(events[5].at("cat"), "experts");
  EXPECT_EQ(events[5].at("args").at("layer"), 1);
  EXPECT_GE(events[5].at("ts").get<double>(), events[4].at("ts").get<double>());
  std::filesystem::remove(path);
  EXPECT_THROW(trace.write_chrome_trace("/nonexistent/trace.json"), Error);
}

}  // namespace
}  // namespace synod
