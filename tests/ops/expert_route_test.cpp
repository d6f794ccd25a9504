#include "ops/expert_route.h"

#include <gtest/gtest.h>

namespace synod {
namespace {

TEST(ExpertRoute, OneTokenOfTheReferenceRunsOneRowAtATime) {
  EXPECT_EQ(expert_route({.device = "ref", .n_tokens = 1, .n_experts = 8, .n_experts_used = 2}),
            ExpertRoute::kOneRow);
}

TEST(ExpertRoute, TheReferenceGroupsFromTheThreshold) {
  // 100 tokens, 2 of 8 experts: 25 rows per expert.
  ExpertRouteQuery query{.device = "ref", .n_tokens = 100, .n_experts = 8, .n_experts_used = 2};
  EXPECT_EQ(expert_route(query), ExpertRoute::kGrouped);
  query.threshold = 25;
  EXPECT_EQ(expert_route(query), ExpertRoute::kGrouped);
  query.threshold = 26;
  EXPECT_EQ(expert_route(query), ExpertRoute::kOneRow);
}

TEST(ExpertRoute, FastBackendsPairOnlyGateAndUpOfOneType) {
  ExpertRouteQuery query{.device = "cpu", .n_tokens = 1, .n_experts = 128, .n_experts_used = 8};
  EXPECT_EQ(expert_route(query), ExpertRoute::kPaired);
  query.gate_up_alike = false;
  EXPECT_EQ(expert_route(query), ExpertRoute::kOneRow);
  query.n_tokens = 512;
  EXPECT_EQ(expert_route(query), ExpertRoute::kGrouped);
}

TEST(ExpertRoute, NamesAreDistinct) {
  EXPECT_EQ(name(ExpertRoute::kOneRow), "one-row");
  EXPECT_EQ(name(ExpertRoute::kGrouped), "grouped");
  EXPECT_EQ(name(ExpertRoute::kPaired), "paired");
}

}  // namespace
}  // namespace synod
