#include "wrap/recorder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "ref/ref_backend.h"
#include "wrap/dry_run.h"
#include "wrap/small_step.h"

namespace synod {
namespace {

using testing::SmallStep;

TEST(Recorder, ReplaysToIdenticalResultsWithNewInputs) {
  RefBackend be;
  SmallStep recorded, plain;
  Recorder recorder(be, &be);
  recorded.run(recorder);
  EXPECT_EQ(recorder.size(), static_cast<size_t>(SmallStep::kOps));
  recorded.set_input(99);
  plain.set_input(99);
  RefBackend fresh;
  plain.run(fresh);
  EXPECT_NE(recorded.out(), plain.out());
  recorder.replay(be);
  EXPECT_EQ(recorded.out(), plain.out());
  EXPECT_EQ(recorded.cache(), plain.cache());
}

TEST(Recorder, WithoutAnInnerBackendNothingRuns) {
  RefBackend be;
  SmallStep step;
  Recorder recorder(be);
  step.run(recorder);
  EXPECT_EQ(step.out(), std::vector<float>(step.out().size(), 0.0F));
  recorder.replay(be);
  SmallStep plain;
  RefBackend fresh;
  plain.run(fresh);
  EXPECT_EQ(step.out(), plain.out());
}

TEST(Recorder, ReplayKeepsLabels) {
  RefBackend be;
  SmallStep step;
  Recorder recorder(be);
  {
    const Stage stage(recorder, 4, "head");
    testing::F32 x({1, 1}, {NAN});
    testing::I32 best({1});
    recorder(ArgMax{.out = best, .x = x});
    recorder.replay(be);
  }
  EXPECT_EQ(be.take_status().where.text(), "layer 4 head");
}

TEST(Recorder, TheJsonPlanListsOperandsAndValues) {
  RefBackend be;
  SmallStep step;
  Recorder recorder(be, &be);
  step.run(recorder);
  const auto ops = nlohmann::json::parse(recorder.to_json()).at("ops");
  ASSERT_EQ(ops.size(), static_cast<size_t>(SmallStep::kOps));
  EXPECT_EQ(ops[0].at("op"), "rms_norm");
  EXPECT_EQ(ops[0].at("layer"), 0);
  EXPECT_EQ(ops[0].at("part"), "attention");
  EXPECT_NEAR(ops[0].at("values").at("eps").get<double>(), 1e-6, 1e-12);
  const auto& norm = ops[0].at("operands").at(2);
  EXPECT_EQ(norm.at("role"), "weight");
  EXPECT_EQ(norm.at("type"), "f32");
  EXPECT_EQ(norm.at("name"), "norm");
  EXPECT_EQ(norm.at("access"), "read");
  EXPECT_EQ(norm.at("shape"), nlohmann::json({32}));
  EXPECT_EQ(norm.at("bytes"), 128);
  EXPECT_EQ(ops[1].at("operands").at(0).at("access"), "in_place");
}

TEST(Recorder, TheDotPlanLinksProducersToConsumers) {
  RefBackend be;
  SmallStep step;
  Recorder recorder(be, &be);
  step.run(recorder);
  const std::string dot = recorder.to_dot();
  EXPECT_NE(dot.find("op0 -> op1 "), std::string::npos) << "the norm feeds the rotation";
  EXPECT_NE(dot.find("op2 -> op3 [label=\"k"), std::string::npos) << "written rows feed the attention";
  EXPECT_NE(dot.find("op3 -> op5 "), std::string::npos) << "through a view of another shape";
  EXPECT_EQ(dot.find("op0 -> op5 "), std::string::npos) << "overwritten since";
}

TEST(Recorder, ADryPlanHasTheSameOpsAndLinks) {
  RefBackend be;
  DryRun dry;
  SmallStep step;
  Recorder real(be, &be), planned(dry);
  step.run(real);
  step.run(planned);
  EXPECT_EQ(planned.to_json(), real.to_json());
  EXPECT_NE(planned.to_dot().find("op5 -> op6 "), std::string::npos);
}

TEST(Recorder, WritesByTheEndingOfThePath) {
  RefBackend be;
  SmallStep step;
  Recorder recorder(be);
  step.run(recorder);
  const auto written = [&](const std::string& ending) {
    const std::string path = ::testing::TempDir() + "/synod_recorder_test" + ending;
    recorder.write(path);
    std::ifstream in(path);
    std::string text{std::istreambuf_iterator<char>(in), {}};
    std::filesystem::remove(path);
    return text;
  };
  EXPECT_EQ(written(".dot"), recorder.to_dot());
  EXPECT_EQ(written(".json"), recorder.to_json());
  EXPECT_THROW(recorder.write("/nonexistent/plan.json"), Error);
}

TEST(Recorder, NamesAreEscaped) {
  RefBackend be;
  Recorder recorder(be);
  const testing::F32 x({1, 1}, {1}, "a \"b\"\\\n");
  recorder(Scale{.x = x, .factor = INFINITY});
  const auto ops = nlohmann::json::parse(recorder.to_json()).at("ops");
  EXPECT_EQ(ops[0].at("operands").at(0).at("name"), "a \"b\"\\\n");
  EXPECT_TRUE(ops[0].at("values").at("factor").is_null());
}

}  // namespace
}  // namespace synod
