// A model as stored, whatever the container: named tensors plus its configuration.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"

namespace synod {

class Checkpoint {
 public:
  enum class Container { kGguf, kSafetensors };

  // A `.gguf` file (first of a split), a `.safetensors` file beside its config.json, or a folder with
  // safetensors and config.json. Throws kNotFound, kBadFile.
  static Checkpoint open(const std::filesystem::path& path);
  ~Checkpoint();
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;

  Container container() const { return container_; }
  const std::filesystem::path& path() const { return path_; }
  const Tensor* find(std::string_view name) const;
  const std::map<std::string_view, Tensor>& tensors() const { return tensors_; }
  int64_t data_bytes() const;

  const GgufMetadata& gguf() const;  // kGguf only
  // safetensors only: the parsed files of the folder; null JSON when absent (config.json must exist).
  const nlohmann::json& config() const;
  const nlohmann::json& generation_config() const;
  const nlohmann::json& tokenizer_config() const;
  std::optional<std::filesystem::path> tokenizer_json() const;
  std::optional<std::string> chat_template() const;  // chat_template.jinja, tokenizer_config or GGUF key

 private:
  struct Json;
  Checkpoint();

  Container container_ = Container::kGguf;
  std::filesystem::path path_;
  std::map<std::string_view, Tensor> tensors_;
  std::unique_ptr<GgufFile> gguf_;
  std::unique_ptr<SafetensorsFile> safetensors_;
  std::unique_ptr<Json> json_;
};

// Parses JSON from a file: depth at most 64, duplicate keys refused, size at most 64 MiB; kBadFile otherwise.
nlohmann::json parse_json(std::string_view text, const std::string& file_name);

}  // namespace synod
