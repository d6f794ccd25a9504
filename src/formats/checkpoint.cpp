#include "formats/checkpoint.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "formats/byte_reader.h"
#include "formats/gguf_format.h"
#include "formats/paths.h"

namespace synod {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kMaxConfigBytes = 16 << 20;
constexpr int64_t kMaxTemplateBytes = 4 << 20;
constexpr const char* kExpected =
    "expected a .gguf file, a folder with config.json and model.safetensors (or its shards and index), or a "
    ".safetensors file beside its config.json";

// By content where the name does not say: model stores name files by their hash.
bool has_gguf_magic(const fs::path& path) {
  const MappedFile file = MappedFile::open(path);
  const auto bytes = file.bytes();
  return bytes.size() >= gguf::kMagic.size() &&
         std::equal(gguf::kMagic.begin(), gguf::kMagic.end(), reinterpret_cast<const char*>(bytes.data()));
}

// First .gguf of a folder by name, for the hint.
std::string first_gguf(const fs::path& folder) {
  std::string first;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() == ".gguf" && (first.empty() || name < first)) first = name;
  }
  return first;
}

void check_model_folder(const fs::path& folder) {
  if (is_file(folder / "model.safetensors") || is_file(folder / "model.safetensors.index.json")) return;
  const std::string gguf = first_gguf(folder);
  if (!gguf.empty()) {
    fail(Error::Kind::kNotFound, "{}: a folder with GGUF files: give the file, {}", folder.string(),
         (folder / gguf).string());
  }
  fail(Error::Kind::kNotFound, "{}: no model in this folder: {}", folder.string(), kExpected);
}

json read_object(const fs::path& path) {
  json value = parse_json(read_text_file(path, kMaxConfigBytes), path.string());
  if (!value.is_object()) bad_file("{}: expected a JSON object, got {}", path.string(), value.type_name());
  return value;
}

json read_object_if_any(const fs::path& path) { return is_file(path) ? read_object(path) : json(); }

std::string template_text(const json& value, const std::string& file) {
  if (!value.is_string())
    bad_file("{}: key chat_template: expected a string, got {}", file, value.type_name());
  return value.get<std::string>();
}

// Older files list named templates: [{"name": "default", "template": "..."}].
std::optional<std::string> default_template(const json& list, const std::string& file) {
  for (const json& item : list) {
    if (!item.is_object() || item.value("name", json()) != "default") continue;
    return template_text(item.value("template", json()), file);
  }
  return std::nullopt;
}

}  // namespace

struct Checkpoint::Json {
  fs::path folder;
  json config, generation_config, tokenizer_config;
};

Checkpoint::Checkpoint() = default;
Checkpoint::~Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;

Checkpoint Checkpoint::open(const fs::path& path) {
  const bool folder = is_folder(path);
  if (!folder && !is_file(path)) {
    fail(Error::Kind::kNotFound, "{}: no such file or folder; {}", path.string(), kExpected);
  }

  Checkpoint model;
  model.path_ = path;
  model.json_ = std::make_unique<Json>();
  if (!folder && (path.extension() == ".gguf" || has_gguf_magic(path))) {
    model.gguf_ = std::make_unique<GgufFile>(GgufFile::open(path));
    for (const Tensor& t : model.gguf_->tensors()) model.tensors_.emplace(t.name, t);
    return model;
  }
  if (!folder && path.extension() != ".safetensors") bad_file("{}: {}", path.string(), kExpected);
  if (folder) check_model_folder(path);
  model.container_ = Container::kSafetensors;
  Json& files = *model.json_;
  files.folder = folder ? path : path.parent_path();  // an empty folder means the current one
  if (!is_file(files.folder / "config.json")) {
    fail(Error::Kind::kNotFound, "{}: config.json is missing in its folder; {}", path.string(), kExpected);
  }
  files.config = read_object(files.folder / "config.json");
  files.generation_config = read_object_if_any(files.folder / "generation_config.json");
  files.tokenizer_config = read_object_if_any(files.folder / "tokenizer_config.json");
  model.safetensors_ = std::make_unique<SafetensorsFile>(SafetensorsFile::open(path));
  for (const Tensor& t : model.safetensors_->tensors()) model.tensors_.emplace(t.name, t);
  return model;
}

const Tensor* Checkpoint::find(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

int64_t Checkpoint::data_bytes() const {
  int64_t sum = 0;
  for (const auto& [name, tensor] : tensors_) sum += tensor.bytes();
  return sum;
}

const GgufMetadata& Checkpoint::gguf() const {
  SYNOD_ASSERT(gguf_ != nullptr);
  return gguf_->metadata();
}

const json& Checkpoint::config() const { return json_->config; }
const json& Checkpoint::generation_config() const { return json_->generation_config; }
const json& Checkpoint::tokenizer_config() const { return json_->tokenizer_config; }

std::optional<fs::path> Checkpoint::tokenizer_json() const {
  if (container_ == Container::kGguf) return std::nullopt;
  fs::path file = json_->folder / "tokenizer.json";
  if (!is_file(file)) return std::nullopt;
  return file;
}

std::optional<std::string> Checkpoint::chat_template() const {
  if (container_ == Container::kGguf) return gguf().find_string("tokenizer.chat_template");
  const fs::path jinja = json_->folder / "chat_template.jinja";
  if (is_file(jinja)) return read_text_file(jinja, kMaxTemplateBytes);
  const json& config = json_->tokenizer_config;
  const auto it = config.is_object() ? config.find("chat_template") : config.end();
  if (it == config.end() || it->is_null()) return std::nullopt;
  const std::string file = (json_->folder / "tokenizer_config.json").string();
  if (it->is_array()) return default_template(*it, file);
  return template_text(*it, file);
}

}  // namespace synod
