#include "convert/convert.h"

#include <unistd.h>

#include <charconv>
#include <csignal>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cli/conversion.h"
#include "cli/verbs.h"

namespace synod::cli {
namespace {

using Json = nlohmann::ordered_json;

struct TypeTotal {
  int64_t n_tensors = 0;
  int64_t bytes = 0;
};

std::map<DType, TypeTotal> totals(const ConvertReport& report) {
  std::map<DType, TypeTotal> by_type;
  for (const ConvertedTensor& t : report.tensors) {
    ++by_type[t.type].n_tensors;
    by_type[t.type].bytes += t.bytes;
  }
  return by_type;
}

double bits_per_value(const ConvertReport& report) {
  return 8.0 * static_cast<double>(report.bytes) / static_cast<double>(std::max<int64_t>(report.n_values, 1));
}

void print_json(const Options& options, const std::string& type, const ConvertReport& report) {
  Json object = {{"schema_version", 1},
                 {"file", options.output},
                 {"type", type},
                 {"tensors", report.tensors.size()},
                 {"bytes", report.bytes},
                 {"bits_per_value", bits_per_value(report)},
                 {"seconds", report.seconds},
                 {"source_bytes", report.source_bytes}};
  object["files"] = Json::array();
  for (const auto& file : report.files) object["files"].push_back(file.string());
  object["types"] = Json::array();
  for (const auto& [dtype, total] : totals(report)) {
    object["types"].push_back({{"type", name(dtype)}, {"tensors", total.n_tensors}, {"bytes", total.bytes}});
  }
  object["warnings"] = report.warnings;
  if (options.dry_run) {
    object["plan"] = Json::array();
    for (const ConvertedTensor& t : report.tensors) {
      object["plan"].push_back(
          {{"name", t.name}, {"type", name(t.type)}, {"shape", t.shape}, {"bytes", t.bytes}});
    }
  }
  std::printf("%s\n", object.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
}

void print_plan(const ConvertReport& report) {
  for (const ConvertedTensor& t : report.tensors) {
    std::printf("%-44s %-8s %-24s %12s\n", t.name.c_str(), std::string(name(t.type)).c_str(),
                shape_string(t.shape).c_str(), human_bytes(t.bytes).c_str());
  }
  for (const auto& [dtype, total] : totals(report)) {
    std::printf("%-8s %5lld tensors %12s\n", std::string(name(dtype)).c_str(),
                static_cast<long long>(total.n_tensors), human_bytes(total.bytes).c_str());
  }
  std::printf("%zu tensors, %s, %.2f bits per value\n", report.tensors.size(),
              human_bytes(report.bytes).c_str(), bits_per_value(report));
}

// A disk error in a mapped input, or an input that is cut while it is read, arrives as this signal.
void on_bus_error(int) {
  constexpr std::string_view kText =
      "synod: error: an input can no longer be read: a disk error, or it was cut while in use\n";
  (void)!::write(STDERR_FILENO, kText.data(), kText.size());
  ::_exit(exit_code(Error::Kind::kBadFile));
}

DType type_option(const std::string& text, const char* option) { return parse_stored_type(text, option); }

}  // namespace

MixOptions mix_options(const Options& options) {
  MixOptions types;
  types.pure = options.pure;
  types.quantize_all = options.quantize_all;
  types.keep_output = options.keep_output;
  if (!options.output_type.empty()) types.output = type_option(options.output_type, "--output-tensor-type");
  if (!options.embedding_type.empty()) {
    types.embedding = type_option(options.embedding_type, "--token-embedding-type");
  }
  for (const std::string& text : options.type_overrides) types.overrides.push_back(parse_type_override(text));
  return types;
}

int64_t parse_size(const std::string& text, const char* option) {
  if (text.empty()) return 0;
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  const std::string unit(stop, end);
  constexpr std::pair<const char*, int64_t> kUnits[] = {
      {"", 1}, {"K", 1000}, {"M", 1'000'000}, {"G", 1'000'000'000}, {"T", 1'000'000'000'000}};
  for (const auto& [suffix, factor] : kUnits) {
    int64_t bytes = 0;
    if (error == std::errc() && unit == suffix && value > 0 &&
        !__builtin_mul_overflow(value, factor, &bytes)) {
      return bytes;
    }
  }
  fail(Error::Kind::kUsage, "{}: expected a size such as 40G, 500M or a number of bytes, got \"{}\"", option,
       text);
}

int run_conversion(const Options& options, const std::string& type) {
  const Mix& mix = mix_or_throw(type);
  ConvertOptions convert_options{.type = mix.name,
                                 .types = mix_options(options),
                                 .importance_file = options.imatrix,
                                 .n_threads = static_cast<int>(options.threads),
                                 .split_max_bytes = parse_size(options.split_max_size, "--split-max-size"),
                                 .allow_requantize = options.allow_requantize,
                                 .receipt = !options.no_receipt,
                                 .dry_run = options.dry_run,
                                 .version = SYNOD_VERSION,
                                 .cancelled = [] { return g_signal != 0; }};
  std::error_code ignored;
  if (!options.force && !options.dry_run && std::filesystem::exists(options.output, ignored)) {
    fail(Error::Kind::kUsage, "{} exists; use --force to replace it", options.output);
  }
  const Checkpoint checkpoint = Checkpoint::open(options.model);
  std::optional<Imatrix> importance;
  if (!options.imatrix.empty()) {
    importance = Imatrix::read(options.imatrix);
    convert_options.importance = &*importance;
  }
  std::signal(SIGBUS, on_bus_error);
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit is then an error of write(), like a full disk
  const ConvertReport report = convert(checkpoint, options.output, convert_options);
  if (report.was_cancelled) {
    log_warning("stopped; nothing was written");
    return 128 + g_signal;
  }
  if (options.json) {
    print_json(options, std::string(mix.name), report);
  } else if (options.dry_run) {
    print_plan(report);
  } else {
    const double rate = static_cast<double>(report.source_bytes) / std::max(report.seconds, 1e-9);
    log_info("wrote {}: {} tensors, {}, {:.2f} bits per value, in {:.1f} s ({}/s of input)",
             report.files.size() == 1
                 ? report.files[0].string()
                 : fmt::format("{} files from {}", report.files.size(), report.files[0].string()),
             report.tensors.size(), human_bytes(report.bytes), bits_per_value(report), report.seconds,
             human_bytes(static_cast<int64_t>(rate)));
  }
  return 0;
}

int convert_verb(const Options& options) { return run_conversion(options, options.type); }

}  // namespace synod::cli
