#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cli/conversion.h"
#include "cli/verbs.h"
#include "convert/size_plan.h"
#include "engine/memory_plan.h"

namespace synod::cli {
namespace {

using Json = nlohmann::ordered_json;

// A bare config.json is planned without weights, as the mix or type of --type.
struct BarePlan {
  std::unique_ptr<Model> model;
  std::vector<TensorSize> sizes;
};

BarePlan plan_from_config(const std::filesystem::path& path, const Options& options) {
  const std::string text = read_text_file(path);
  const nlohmann::json config = parse_json(text, path.string());
  const Mix& mix = mix_or_throw(options.type);
  std::vector<std::string> found;
  for (const nlohmann::json* object :
       {&config, config.contains("text_config") ? &config["text_config"] : &config}) {
    if (object->is_object() && object->contains("model_type") && (*object)["model_type"].is_string()) {
      found.push_back((*object)["model_type"].get<std::string>());
    }
  }
  MixOptions types = mix_options(options);
  types.has_importance = true;  // of mixes that depend on it, the usual form
  for (const Architecture* a : architectures()) {
    for (const std::string_view known : a->hf_model_types) {
      if (std::ranges::find(found, known) == found.end()) continue;
      BarePlan plan{a->plan(text, mix.base, options.model_options()), {}};
      plan.sizes = planned_sizes(a->config_specs(text), mix, types, plan.model->info().n_experts_used);
      return plan;
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

// The model object of a bare configuration has one type; these are the mix's.
void describe_mix(std::span<const TensorSize> sizes, Json& out) {
  out["weight_bytes"] = total(sizes).bytes;
  out["bytes_per_token"] = total(sizes).bytes_per_token;
  std::map<std::string, std::pair<int64_t, int64_t>> types;
  for (const TensorSize& t : sizes) {
    ++types[t.type].first;
    types[t.type].second += t.bytes;
  }
  out["types"] = Json::array();
  for (const auto& [type, sum] : types) {
    out["types"].push_back({{"type", type}, {"tensors", sum.first}, {"bytes", sum.second}});
  }
}

// Tokens per second when a token's weights come from memory at `gb_s` and nothing else takes time.
double decode_ceiling(const SizeTotal& sum, double gb_s) {
  return gb_s * 1e9 / static_cast<double>(std::max<int64_t>(sum.bytes_per_token, 1));
}

Json plan_json(const MemoryPlan& plan, const Model& model, std::span<const TensorSize> sizes, double gb_s) {
  const SizeTotal sum = total(sizes);
  Json out = {{"context_length", plan.context_length},
              {"weights", plan.weight_bytes},
              {"cache", plan.cache_bytes},
              {"scratch", plan.scratch_bytes},
              {"total", plan.total()},
              {"ops_per_token", plan.n_ops},
              {"bytes_per_token", sum.bytes_per_token},
              {"bandwidth", gb_s * 1e9},
              {"decode_ceiling", decode_ceiling(sum, gb_s)},
              {"fusion", model.fusion().summary()}};
  out["tensors"] = Json::array();
  for (const TensorSize& t : sizes) {
    out["tensors"].push_back({{"name", t.name},
                              {"type", t.type},
                              {"shape", t.shape},
                              {"bytes", t.bytes},
                              {"bytes_per_token", t.bytes_per_token}});
  }
  return out;
}

// "blk.7.attn_q.weight" -> "blk.*.attn_q.weight"
std::string without_layer(const std::string& name) {
  if (layer_of_tensor(name) < 0) return name;
  return "blk.*" + name.substr(name.find('.', 4));
}

void print_sizes(std::span<const TensorSize> sizes, double gb_s, bool every_tensor) {
  struct Row {
    int64_t n = 0, bytes = 0, bytes_per_token = 0;
  };
  std::vector<std::pair<std::string, Row>> rows;  // tensors of one kind, type and shape, in order
  for (const TensorSize& t : sizes) {
    const std::string key = fmt::format("{:<34} {:<10} {:<22}", every_tensor ? t.name : without_layer(t.name),
                                        t.type, shape_string(t.shape));
    auto it = std::ranges::find(rows, key, &std::pair<std::string, Row>::first);
    if (it == rows.end()) it = rows.insert(rows.end(), {key, {}});
    ++it->second.n;
    it->second.bytes += t.bytes;
    it->second.bytes_per_token += t.bytes_per_token;
  }
  std::printf("\n%-34s %-10s %-22s %5s %12s %16s\n", "tensor", "type", "shape", "n", "bytes",
              "bytes per token");
  for (const auto& [key, row] : rows) {
    std::printf("%s %5lld %12s %16s\n", key.c_str(), static_cast<long long>(row.n),
                human_bytes(row.bytes).c_str(), human_bytes(row.bytes_per_token).c_str());
  }
  const SizeTotal sum = total(sizes);
  std::printf("weights %s; a decoded token reads %s: at most %.2f tokens/s at %g GB/s\n",
              human_bytes(sum.bytes).c_str(), human_bytes(sum.bytes_per_token).c_str(),
              decode_ceiling(sum, gb_s), gb_s);
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
  std::vector<TensorSize> sizes;
  const bool bare_config = path.extension() == ".json";
  if (bare_config) {
    BarePlan bare = plan_from_config(path, options);
    model = std::move(bare.model);
    sizes = std::move(bare.sizes);
  } else {
    checkpoint = std::make_unique<Checkpoint>(Checkpoint::open(path));
    model = load_model(*checkpoint, options.model_options());
  }
  Json out = {{"schema_version", 1}, {"file", path.string()}};
  out["model"] = describe(*model);
  if (bare_config) describe_mix(sizes, out["model"]);
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
    if (bare_config) {
      plan.weight_bytes = total(sizes).bytes;
      plan.bytes_per_token = total(sizes).bytes_per_token;
    } else {
      sizes = stored_sizes(TensorSource(*checkpoint), model->info().n_experts_used);
    }
    out["plan"] = plan_json(plan, *model, sizes, options.bandwidth_gb_s);
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
    print_sizes(sizes, options.bandwidth_gb_s, options.list_tensors);
    std::printf("\nexperts: %s\n", describe_routes(*model, "ref", options).c_str());
    std::printf("\n%s\ncache\n%s\nfusion: %s\n", plan.describe().c_str(),
                model->cache_spec().describe().c_str(), model->fusion().summary().c_str());
  }
  return 0;
}

}  // namespace synod::cli
