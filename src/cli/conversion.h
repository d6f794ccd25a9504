// What convert and quantize share on the command line.
#pragma once

#include <string>

#include "cli/options.h"
#include "convert/mixes.h"

namespace synod::cli {

// Runs the conversion to `type`, prints the result, returns the exit code.
int run_conversion(const Options& options, const std::string& type);

// --tensor-type, --output-tensor-type and the like. Throws kUsage.
MixOptions mix_options(const Options& options);

// "40G" = 40e9 bytes, "500M", "64K", or bytes; empty = 0. Throws kUsage.
int64_t parse_size(const std::string& text, const char* option);

}  // namespace synod::cli
