// Writes a configuration as GGUF keys.
#pragma once

#include "formats/gguf.h"
#include "models/deepseek4/config.h"

namespace synod::deepseek4 {

// Every key that the architecture needs; Config::from_gguf reads the same configuration back.
void write_config(const Config& config, GgufMetadata& metadata);

}  // namespace synod::deepseek4
