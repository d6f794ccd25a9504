// What super-block and codebook types hand to Blocks256.

// How group sums meet their integer scale.
enum class Scaling {
  kMultiply,  // 32-bit product; emit's scale is an i32 lane
  kPairs,     // two sums of 32 packed as int16 meet a pair of scales in vpdpwssd (Header::s)
  kFolded,    // codes were multiplied already
};

struct Header {
  __m512i s[4];  // kPairs: scales as pairs
  __m512i m[8];  // mins as pairs
  __m512 d;
  __m512 dmin;
};
