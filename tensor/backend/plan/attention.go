package plan

// Layout is the place of an array of matrices, in elements: it starts at At, has the strides Batch,
// and Row elements between two rows.
type Layout struct {
	Batch   []int
	Row, At int
}

// The kinds of masks.
const (
	NoMask    = iota
	FloatMask // is added to the scores
	BoolMask  // is 0 where a key is not seen
)

// Attention is the plan of attentions for every element of Dims. The queries are (L, E), keys (S,
// E), values (S, V), the result (L, V), and the mask (L, S). The sums and the mask's gradient
// follow each other in memory.
type Attention struct {
	Dims                                         []int
	L, S, E, V                                   int
	Query, Key, Value, Out, DQuery, DKey, DValue Layout
	Masking                                      int
	Mask                                         Layout
	MaskColumn                                   int // stride
	Causal                                       bool
	Scale                                        float64
}

// Count is the number of elements of the batch.
func (p *Attention) Count() int { return (&Placement{Dims: p.Dims}).Count() }

// Start returns the offset of batch element z.
func (p *Attention) Start(z int, l Layout) (from int) {
	for i := len(p.Dims) - 1; i >= 0; i-- {
		from += z % p.Dims[i] * l.Batch[i]
		z /= p.Dims[i]
	}
	return from
}
