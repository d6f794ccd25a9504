#include <cstdio>

#include "cli/conversion.h"
#include "cli/verbs.h"

namespace synod::cli {

int quantize_verb(const Options& options) { return run_conversion(options, options.quantize_type); }

}  // namespace synod::cli
