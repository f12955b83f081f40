// The gated half of an MLP over 4-bit weights. kernels/metal/gated.rs says what it computes.

namespace linnet {

// Columns that a lane takes at a time: two words of codes, in one group of any size from 32.
struct Chunk {
  enum { COLUMNS = 16, WORDS = 2 };
};

// Loads a chunk of each row of activations, and sums it. Every fourth value is divided by 16, 256 and 4096: codes are
// then masked where they lie, and not shifted. Dividing by powers of two is exact.
template <int ROWS, typename Activations>
inline void load_chunk(Activations x, size_t stride, uint column, thread float (&values)[ROWS][Chunk::COLUMNS],
                       thread float (&sums)[ROWS]) {
  for (int row = 0; row < ROWS; ++row) {
    const auto source = x + row * stride + column;
    float sum = 0.0f;
    for (int i = 0; i < Chunk::COLUMNS; i += 4) {
      const float a = static_cast<float>(source[i]);
      const float b = static_cast<float>(source[i + 1]);
      const float c = static_cast<float>(source[i + 2]);
      const float d = static_cast<float>(source[i + 3]);
      sum += (a + b) + (c + d);
      values[row][i] = a;
      values[row][i + 1] = b * (1.0f / 16.0f);
      values[row][i + 2] = c * (1.0f / 256.0f);
      values[row][i + 3] = d * (1.0f / 4096.0f);
    }
    sums[row] = sum;
  }
}

// Adds one chunk of one weight row's product with each row of activations.
template <int ROWS, typename Codes>
inline void add_chunk(Codes codes, float scale, float bias, const thread float (&values)[ROWS][Chunk::COLUMNS],
                      const thread float (&sums)[ROWS], thread float (&totals)[ROWS]) {
  float dots[ROWS];
  for (int row = 0; row < ROWS; ++row) {
    dots[row] = 0.0f;
  }
  for (int word = 0; word < Chunk::WORDS; ++word) {
    const uint packed = codes[word];
    for (int part = 0; part < 2; ++part) {
      const uint four = packed >> (16 * part);
      const float a = static_cast<float>(four & 0x000fu);
      const float b = static_cast<float>(four & 0x00f0u);
      const float c = static_cast<float>(four & 0x0f00u);
      const float d = static_cast<float>(four & 0xf000u);
      const int first = word * 8 + part * 4;
      for (int row = 0; row < ROWS; ++row) {
        dots[row] += (values[row][first] * a + values[row][first + 1] * b) +
                     (values[row][first + 2] * c + values[row][first + 3] * d);
      }
    }
  }
  for (int row = 0; row < ROWS; ++row) {
    totals[row] += scale * dots[row] + bias * sums[row];
  }
}

inline float silu(float x) { return x / (1.0f + precise::exp(-x)); }

// The tanh form of GELU. Beyond 10 tanh is 1 in single precision, and some implementations of it overflow.
inline float gelu_tanh(float x) {
  const float inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  return 0.5f * x * (1.0f + precise::tanh(clamp(inner, -10.0f, 10.0f)));
}

// Both products are rounded to T first, as two separate products are.
template <typename T, int GELU>
inline T gated(float gate, float up) {
  const float g = static_cast<float>(static_cast<T>(gate));
  const float u = static_cast<float>(static_cast<T>(up));
  return static_cast<T>((GELU ? gelu_tanh(g) : silu(g)) * u);
}

}  // namespace linnet
