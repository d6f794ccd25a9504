#include "convert/receipt.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "convert/row_pipeline.h"
#include "convert/sha256.h"
#include "formats/atomic_file.h"
#include "formats/paths.h"

namespace synod {
namespace {

namespace fs = std::filesystem;

// PREFIX-00001-of-00003.gguf: the other files are called alike.
std::vector<fs::path> split_files(const fs::path& first, int64_t count) {
  const std::string name = first.filename().string();
  const std::string tail = fmt::format("-{:05d}-of-{:05d}.gguf", 1, count);
  if (count < 2 || !name.ends_with(tail)) return {first};
  std::vector<fs::path> files;
  const std::string prefix = name.substr(0, name.size() - tail.size());
  for (int64_t n = 1; n <= count; ++n) {
    files.push_back(first.parent_path() / fmt::format("{}-{:05d}-of-{:05d}.gguf", prefix, n, count));
  }
  return files;
}

}  // namespace

std::vector<fs::path> files_of(const Checkpoint& checkpoint) {
  const fs::path& path = checkpoint.path();
  if (checkpoint.container() == Checkpoint::Container::kGguf) {
    return split_files(path, checkpoint.gguf().find_int("split.count").value_or(1));
  }
  const bool is_file_given = is_file(path);
  std::vector<fs::path> files;
  if (is_file_given) files.push_back(path);
  const fs::path folder = is_file_given ? path.parent_path() : path;
  constexpr std::array<std::string_view, 4> kSmall = {".json", ".jinja", ".model", ".txt"};
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder.empty() ? fs::path(".") : folder, error)) {
    const std::string extension = entry.path().extension().string();
    const bool wanted = std::ranges::find(kSmall, extension) != kSmall.end() ||
                        (!is_file_given && extension == ".safetensors");
    if (wanted && is_file(entry.path())) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

fs::path receipt_path(const fs::path& output) {
  fs::path path = output;
  path += ".receipt.json";
  return path;
}

bool write_receipt(const std::vector<fs::path>& inputs, const std::vector<fs::path>& outputs,
                   const ReceiptInput& what, int n_threads,
                   const std::function<bool(int64_t bytes)>& on_read) {
  using Json = nlohmann::ordered_json;
  std::vector<fs::path> all = inputs;
  all.insert(all.end(), outputs.begin(), outputs.end());
  if (!what.importance_file.empty()) all.emplace_back(what.importance_file);
  std::vector<Json> described(all.size());
  std::mutex mutex;
  bool cancelled = false;
  const RowPipeline pipeline{.n_threads = std::clamp<int>(n_threads, 1, static_cast<int>(all.size())),
                             .make =
                                 [&](int64_t index, int, std::vector<std::byte>&) {
                                   const fs::path& file = all[static_cast<size_t>(index)];
                                   int64_t size = 0;
                                   const std::string hash = sha256_of_file(file, [&](int64_t bytes) {
                                     size += bytes;
                                     const std::lock_guard lock(mutex);
                                     cancelled = cancelled || !on_read(bytes);
                                     return !cancelled;
                                   });
                                   described[static_cast<size_t>(index)] = {
                                       {"file", file.filename().string()}, {"bytes", size}, {"sha256", hash}};
                                 },
                             .take = [](int64_t, std::vector<std::byte>&) { return true; }};
  pipeline.run(static_cast<int64_t>(all.size()));
  if (cancelled) return false;

  Json receipt = {{"schema_version", 1}, {"program", "synod " + what.version}};
  receipt["options"] = {{"type", what.type}, {"tensor_types", what.type_overrides}};
  for (const auto& [key, value] : what.options) receipt["options"][key] = value;
  receipt["importance"] = what.importance_file.empty() ? Json(nullptr) : described.back();
  receipt["inputs"] =
      std::vector(described.begin(), described.begin() + static_cast<ptrdiff_t>(inputs.size()));
  receipt["outputs"] =
      std::vector(described.begin() + static_cast<ptrdiff_t>(inputs.size()),
                  described.begin() + static_cast<ptrdiff_t>(inputs.size() + outputs.size()));
  receipt["tensors"] = what.n_tensors;
  receipt["warnings"] = what.warnings;
  AtomicFile file(receipt_path(outputs.front()));
  file.write(receipt.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  file.commit();
  return true;
}

}  // namespace synod
