#include "ops/backend.h"

#include "ops/lowering.h"

namespace synod {

#define SYNOD_PRIMITIVE(Op)
#define SYNOD_FUSED(Op) \
  void Backend::run(const Op& op) { lower(op, *this); }
#include "ops/ops.def"
#undef SYNOD_PRIMITIVE
#undef SYNOD_FUSED

std::string Label::text() const {
  if (layer < 0) return part.empty() ? "unlabelled ops" : std::string(part);
  return part.empty() ? fmt::format("layer {}", layer) : fmt::format("layer {} {}", layer, part);
}

void require_ok(Backend& backend) {
  const Backend::StatusReport report = backend.take_status();
  if (report.bits == 0) return;
  std::string what;
  const auto add = [&](Status status, const char* text) {
    if ((report.bits & static_cast<uint32_t>(status)) != 0)
      what += (what.empty() ? "" : " and ") + std::string(text);
  };
  add(Status::kNonFinite, "non-finite scores");
  add(Status::kBadId, "an id out of range");
  fail(Error::Kind::kNumeric, "step failed: {} in {}; nothing was committed", what, report.where.text());
}

}  // namespace synod
