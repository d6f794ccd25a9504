#include "models/model.h"

namespace synod {

std::string model_name(const Checkpoint& checkpoint) {
  if (checkpoint.container() == Checkpoint::Container::kGguf) {
    if (auto name = checkpoint.gguf().find_string("general.name")) return *name;
    return checkpoint.path().stem().string();
  }
  std::filesystem::path path = std::filesystem::absolute(checkpoint.path()).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // a trailing slash
  return path.extension() == ".safetensors" ? path.parent_path().filename().string()
                                            : path.filename().string();
}

}  // namespace synod
