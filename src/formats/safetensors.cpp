// Opening safetensors: one file, or the shards that an index names.
#include "formats/safetensors.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "formats/byte_reader.h"
#include "formats/checkpoint.h"
#include "formats/paths.h"
#include "formats/safetensors_header.h"

namespace synod {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSingleName = "model.safetensors";

struct Index {
  std::string path;                                       // for messages
  std::map<std::string, std::string, std::less<>> files;  // tensor -> file name
};

// A file name, not a path: an index must not reach outside its folder.
bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of({"/\\\0", 3}) == std::string_view::npos;
}

Index read_index(const fs::path& path) {
  Index index{path.string(), {}};
  const nlohmann::json root = parse_json(read_text_file(path), index.path);
  const auto map = root.is_object() ? root.find("weight_map") : root.end();
  if (map == root.end() || !map->is_object()) bad_file("{}: expected an object \"weight_map\"", index.path);
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) {
      bad_file("{}: tensor {}: expected a file name, got {}", index.path, printable(tensor),
               file.type_name());
    }
    const auto& name = file.get_ref<const std::string&>();
    if (!is_plain_file_name(name)) {
      bad_file("{}: tensor {}: expected a plain file name, got \"{}\"", index.path, printable(tensor),
               printable(name));
    }
    index.files.emplace(tensor, name);
  }
  return index;
}

std::set<std::string> shard_names(const Index& index) {
  std::set<std::string> names;
  for (const auto& [tensor, file] : index.files) names.insert(file);
  return names;
}

using FoundIn = std::map<std::string, std::string, std::less<>>;  // tensor -> the shard that has it

void note_found(FoundIn& found, std::string_view tensor, const std::string& shard, const Index& index) {
  const auto [it, inserted] = found.emplace(tensor, shard);
  if (!inserted) {
    bad_file("{}: tensor {} is in two shards, {} and {}", index.path, printable(tensor),
             printable(it->second), printable(shard));
  }
}

void warn_unmapped(const Index& index, const FoundIn& found) {
  int64_t count = 0;
  std::string_view example;
  for (const auto& [tensor, file] : found) {
    if (index.files.contains(tensor)) continue;
    if (count++ == 0) example = tensor;
  }
  if (count > 0) {
    log_warning("{}: {} tensors of the shards are not in the index, first {}", index.path, count,
                printable(example));
  }
}

void check_against_index(const Index& index, const FoundIn& found) {
  for (const auto& [tensor, file] : index.files) {
    const auto it = found.find(tensor);
    if (it == found.end())
      bad_file("{}: tensor {} is not in {}", index.path, printable(tensor), printable(file));
    if (it->second != file) {
      bad_file("{}: tensor {}: expected it in {}, found it in {}", index.path, printable(tensor),
               printable(file), printable(it->second));
    }
  }
  warn_unmapped(index, found);
}

template <typename T>
void append(std::vector<T>& to, std::vector<T> from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

void sort_by_name(std::vector<Tensor>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) { return a.name < b.name; });
}

}  // namespace

SafetensorsFile SafetensorsFile::parse(std::span<const std::byte> bytes, const std::string& file_name) {
  SafetensorsHeader header = read_safetensors_header(bytes, file_name);
  SafetensorsFile file;
  for (SafetensorsEntry& e : header.entries) {
    if (!e.dtype) {
      file.unreadable_.push_back(std::move(e.name));
      continue;
    }
    if (e.shape.empty()) e.shape = {1};
    file.names_.push_back(std::make_unique<std::string>(std::move(e.name)));
    const std::byte* data = bytes.data() + header.data_start + e.begin;
    file.tensors_.push_back(
        Tensor::contiguous(const_cast<std::byte*>(data), *e.dtype, e.shape, *file.names_.back()));
  }
  return file;
}

SafetensorsFile SafetensorsFile::open(const fs::path& path) {
  fs::path single = path;
  if (is_folder(path)) {
    const fs::path index_path = path / kIndexName;
    if (is_file(index_path)) {
      const Index index = read_index(index_path);
      SafetensorsFile all;
      std::map<std::string, std::string, std::less<>> found;
      for (const std::string& name : shard_names(index)) {
        const fs::path shard_path = path / name;
        if (!is_file(shard_path)) {
          fail(Error::Kind::kNotFound, "{}: names {}, which is missing; is the download complete?",
               index.path, printable(name));
        }
        SafetensorsFile shard = open(shard_path);
        for (const Tensor& t : shard.tensors_) note_found(found, t.name, name, index);
        for (const std::string& t : shard.unreadable_) note_found(found, t, name, index);
        append(all.tensors_, std::move(shard.tensors_));
        append(all.unreadable_, std::move(shard.unreadable_));
        append(all.names_, std::move(shard.names_));
        append(all.files_, std::move(shard.files_));
      }
      check_against_index(index, found);
      std::sort(all.unreadable_.begin(), all.unreadable_.end());
      sort_by_name(all.tensors_);
      return all;
    }
    single = path / kSingleName;
    if (!is_file(single)) {
      fail(Error::Kind::kNotFound, "{}: expected {} or {} in this folder", path.string(), kSingleName,
           kIndexName);
    }
  }
  MappedFile mapped = MappedFile::open(single);
  SafetensorsFile file = parse(mapped.bytes(), single.string());
  file.files_.push_back(std::move(mapped));
  return file;
}

const Tensor* SafetensorsFile::find(std::string_view name) const {
  const auto it = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                   [](const Tensor& t, std::string_view n) { return t.name < n; });
  return it != tensors_.end() && it->name == name ? &*it : nullptr;
}

}  // namespace synod
