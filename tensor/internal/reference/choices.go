package reference

import (
	"hash/fnv"
	"math/rand/v2"
)

// Choices is a source of random numbers for fuzz targets. Each byte of the fuzzer's input is one
// number, so that the fuzzer can learn what a byte decides. The numbers after the last byte depend
// on all bytes.
type Choices struct {
	bytes []byte
	rest  *rand.PCG
}

// NewChoices returns a source for the bytes b.
func NewChoices(b []byte) *Choices {
	h := fnv.New64a()
	_, _ = h.Write(b)
	return &Choices{b, rand.NewPCG(h.Sum64(), uint64(len(b)))}
}

// Uint64 returns the next number.
func (c *Choices) Uint64() uint64 {
	if len(c.bytes) == 0 {
		return c.rest.Uint64()
	}
	b := c.bytes[0]
	c.bytes = c.bytes[1:]
	return uint64(b) * 0x0101010101010101
}
