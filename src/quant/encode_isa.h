// The vector tables of encode_search.h. Reach them through available_searches().
#pragma once

#include "quant/encode_search.h"

namespace synod::quant {

#if defined(__x86_64__)
extern const SearchTable kAvx2Search;    // 8 groups at a time
extern const SearchTable kAvx512Search;  // 16 groups at a time
#endif

}  // namespace synod::quant
