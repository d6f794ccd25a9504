#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cli/verbs.h"
#include "engine/memory_plan.h"

namespace synod::cli {
namespace {

using Json = nlohmann::ordered_json;

// A bare config.json is planned without weights.
std::unique_ptr<Model> plan_from_config(const std::filesystem::path& path, const Options& options) {
  const std::string text = read_text_file(path);
  const nlohmann::json config = parse_json(text, path.string());
  const auto type = dtype_from_name(options.type);
  if (!type) fail(Error::Kind::kUsage, "--type: unknown type \"{}\"", options.type);
  std::vector<std::string> found;
  for (const nlohmann::json* object :
       {&config, config.contains("text_config") ? &config["text_config"] : &config}) {
    if (object->is_object() && object->contains("model_type") && (*object)["model_type"].is_string()) {
      found.push_back((*object)["model_type"].get<std::string>());
    }
  }
  for (const Architecture* a : architectures()) {
    for (const std::string_view known : a->hf_model_types) {
      for (const std::string& f : found) {
        if (f == known) return a->plan(text, *type, options.model_options());
      }
    }
  }
  bad_file("{}: model_type: no supported architecture", path.string());
}

std::string short_value(const GgufValue& value) {
  return std::visit(
      [](const auto& v) -> std::string {
        using V = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<V, std::string>) {
          constexpr size_t kShown = 60;
          return "\"" + (v.size() > kShown ? v.substr(0, kShown) + "..." : v) + "\"";
        } else if constexpr (std::is_same_v<V, GgufValue::Array>) {
          return fmt::format("{}[{}]", name(v.element), v.count);
        } else if constexpr (std::is_same_v<V, GgufValue::Strings>) {
          return fmt::format("string[{}]", v.size());
        } else {
          return fmt::format("{}", v);
        }
      },
      value.value);
}

Json describe(const Model& model) {
  const ModelInfo& i = model.info();
  Json out = {{"architecture", i.architecture},
              {"name", i.name},
              {"layers", i.n_layers},
              {"d_model", i.d_model},
              {"vocabulary", i.vocab_size},
              {"experts", i.n_experts},
              {"experts_used", i.n_experts_used},
              {"context_length", i.context_length},
              {"stored_as", model.weights().dialect()},
              {"weight_bytes", model.weights().bytes()},
              {"bytes_per_token", model.weights().bytes_per_token(i.n_experts_used)}};
  out["types"] = Json::array();
  for (const Weights::TypeTotal& t : model.weights().totals()) {
    out["types"].push_back({{"type", t.type}, {"tensors", t.n_tensors}, {"bytes", t.bytes}});
  }
  return out;
}

Json plan_json(const MemoryPlan& plan, const Model& model) {
  return {
      {"context_length", plan.context_length}, {"weights", plan.weight_bytes}, {"cache", plan.cache_bytes},
      {"scratch", plan.scratch_bytes},         {"total", plan.total()},        {"ops_per_token", plan.n_ops},
      {"fusion", model.fusion().summary()}};
}

void print_text(const Json& model) {
  for (const auto& [key, value] : model.items()) {
    if (key == "types") continue;
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    std::printf("%-16s %s\n", key.c_str(), text.c_str());
  }
  for (const Json& t : model["types"]) {
    std::printf("  %-14s %5lld tensors %12s\n", t["type"].get<std::string>().c_str(),
                static_cast<long long>(t["tensors"].get<int64_t>()),
                human_bytes(t["bytes"].get<int64_t>()).c_str());
  }
}

}  // namespace

int inspect_verb(const Options& options) {
  const std::filesystem::path path = model_path(options);
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<Model> model;
  const bool bare_config = path.extension() == ".json";
  if (bare_config) {
    model = plan_from_config(path, options);
  } else {
    checkpoint = std::make_unique<Checkpoint>(Checkpoint::open(path));
    model = load_model(*checkpoint, options.model_options());
  }
  Json out = {{"schema_version", 1}, {"file", path.string()}};
  out["model"] = describe(*model);
  if (checkpoint && options.list_tensors) {
    out["tensors"] = Json::array();
    for (const auto& [tensor_name, t] : checkpoint->tensors()) {
      out["tensors"].push_back({{"name", tensor_name},
                                {"type", name(t.type)},
                                {"shape", std::vector<int64_t>(t.shape.begin(), t.shape.begin() + t.rank)},
                                {"bytes", t.bytes()}});
    }
  }
  const bool with_plan = options.plan || bare_config;
  MemoryPlan plan;
  if (with_plan) {
    plan = plan_memory(*model, options.context_length, options.chunk);
    out["plan"] = plan_json(plan, *model);
  }
  if (options.json) {
    std::printf("%s\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
    return 0;
  }
  print_text(out["model"]);
  if (checkpoint && checkpoint->container() == Checkpoint::Container::kGguf) {
    std::printf("\nmetadata\n");
    for (const auto& [key, value] : checkpoint->gguf().entries()) {
      std::printf("  %-48s %s\n", key.c_str(), short_value(value).c_str());
    }
  }
  if (out.contains("tensors")) {
    std::printf("\ntensors\n");
    for (const Json& t : out["tensors"]) {
      std::printf("  %-56s %-8s %s\n", t["name"].get<std::string>().c_str(),
                  t["type"].get<std::string>().c_str(), t["shape"].dump().c_str());
    }
  }
  if (with_plan) {
    std::printf("\nexperts: %s\n", describe_routes(*model, "ref", options).c_str());
    std::printf("\n%s\ncache\n%s\nfusion: %s\n", plan.describe().c_str(),
                model->cache_spec().describe().c_str(), model->fusion().summary().c_str());
  }
  return 0;
}

}  // namespace synod::cli
