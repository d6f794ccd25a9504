#include "kv/cache_spec.h"

#include <bit>

#include "base/error.h"
#include "base/log.h"
#include "kv/cache_geometry.h"

namespace synod {
namespace {

constexpr int64_t kMinRowsPerPage = 16;

int64_t ceil_power_of_two(int64_t n) { return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n))); }

}  // namespace

RowGroup make_group(RowGroup group) {
  SYNOD_ASSERT(group.row_dim > 0 && group.row_dim % info(group.type).block_values == 0);
  SYNOD_ASSERT(group.tokens_per_row > 0 && kPageTokens % group.tokens_per_row == 0);
  SYNOD_ASSERT(group.window >= 0 && group.boundary_rows >= 0);
  SYNOD_ASSERT(group.boundary_rows == 0 || group.boundary_rows < group.window);
  SYNOD_ASSERT(std::is_sorted(group.layers.begin(), group.layers.end()));
  group.row_bytes = row_bytes(group.type, group.row_dim);
  const int64_t most = kPageTokens / group.tokens_per_row;
  group.rows_per_page = most;
  if (group.window > 0) {
    const int64_t least = std::min(kMinRowsPerPage, most);
    group.rows_per_page = std::clamp(ceil_power_of_two(std::min(group.window, most)), least, most);
  }
  return group;
}

int64_t CacheSpec::bytes(int64_t n_tokens, int64_t n_call) const {
  int64_t sum = 0;
  for (const RowGroup& group : groups) {
    sum +=
        most_pages(group, n_tokens, n_call) * group.page_bytes() * static_cast<int64_t>(group.layers.size());
  }
  return sum;
}

std::string CacheSpec::describe() const {
  std::string text;
  for (const RowGroup& group : groups) {
    const std::string reach = group.window == 0 ? "all rows" : fmt::format("window {} rows", group.window);
    text += fmt::format("{}: {} layers, {} {} per row, {} tokens per row, {}, pages of {} rows ({})\n",
                        group.name, group.layers.size(), group.row_dim, name(group.type),
                        group.tokens_per_row, reach, group.rows_per_page, human_bytes(group.page_bytes()));
  }
  return text;
}

}  // namespace synod
