#include "convert/convert.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cli/verbs.h"

namespace synod::cli {

int convert_verb(const Options& options) {
  if (!options.force && std::filesystem::exists(options.output)) {
    fail(Error::Kind::kUsage, "{} exists; use --force to replace it", options.output);
  }
  const Checkpoint checkpoint = Checkpoint::open(options.model);
  const auto type = dtype_from_name(options.type);
  SYNOD_ASSERT(type.has_value());
  const ConvertReport report = convert(checkpoint, options.output, {.type = *type});
  if (options.json) {
    const nlohmann::ordered_json object = {{"schema_version", 1},
                                           {"file", options.output},
                                           {"tensors", report.n_tensors},
                                           {"bytes", report.bytes}};
    std::printf("%s\n", object.dump().c_str());
  } else {
    log_info("wrote {}: {} tensors, {}", options.output, report.n_tensors, human_bytes(report.bytes));
  }
  return 0;
}

}  // namespace synod::cli
