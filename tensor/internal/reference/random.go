package reference

import (
	"math"
	"math/big"
	"slices"
)

// Random is a stream of random words: Philox4x32-10 as in its paper, one word at a time.
type Random struct{ Seed, Stream uint64 }

// Word returns word number place of the stream.
func (r Random) Word(place uint64) uint32 {
	const most = 1 << 32
	block := place / 4
	left, right := [2]uint64{block % most, r.Stream % most}, [2]uint64{block / most, r.Stream / most}
	keys := [2]uint64{r.Seed % most, r.Seed / most}
	for range 10 {
		product := [2]uint64{left[0] * 0xD2511F53, left[1] * 0xCD9E8D57}
		left, right = [2]uint64{
			product[1]/most ^ right[0] ^ keys[0], product[0]/most ^ right[1] ^ keys[1],
		}, [2]uint64{product[1] % most, product[0] % most}
		keys = [2]uint64{(keys[0] + 0x9E3779B9) % most, (keys[1] + 0xBB67AE85) % most}
	}
	return uint32([4]uint64{left[0], right[0], left[1], right[1]}[place%4])
}

// Number returns a number of 64 bits: two words, the low one first.
func (r Random) Number(place uint64) uint64 {
	return uint64(r.Word(2*place)) + uint64(r.Word(2*place+1))<<32
}

// Fraction returns a number in [0, 1): a word over 2^32 or, if double is set, 53 bits of a number.
func (r Random) Fraction(place uint64, double bool) float64 {
	if double {
		return math.Ldexp(float64(r.Number(place)/2048), -53)
	}
	return math.Ldexp(float64(r.Word(place)), -32)
}

// Uniform returns numbers from a up to b. round rounds to the dtype. A number that is rounded to b
// becomes a.
func (r Random) Uniform(a, b float64, double bool, round func(float64) float64, shape []int) Result {
	y := newResult(shape)
	for i := range y.Data {
		v := a + float64((b-a)*r.Fraction(uint64(i), double)) // rounded, whereas Go might fuse
		if v = round(v); v >= b {
			v = a
		}
		y.Data[i], y.Size[i] = v, math.Abs(v)
	}
	return y
}

// Normal uses the method of Box and Muller.
func (r Random) Normal(mean, deviation float64, double bool, shape []int) Result {
	y := newResult(shape)
	for i := range y.Data {
		pair := uint64(i) / 2 * 2
		radius := math.Sqrt(-2 * math.Log1p(-r.Fraction(pair, double)))
		turn := 2 * math.Pi * r.Fraction(pair+1, double)
		wave := math.Cos(turn)
		if i%2 == 1 {
			wave = math.Sin(turn)
		}
		y.Data[i] = mean + deviation*radius*wave
		y.Size[i] = math.Abs(mean) + deviation*radius
	}
	return y
}

// Bernoulli returns 1 with probability p, otherwise 0.
func (r Random) Bernoulli(p Array) Result {
	y := newResult(p.Shape)
	for i, v := range p.Data {
		switch drawn := r.Fraction(uint64(i), false); {
		case math.IsNaN(v):
			y.Data[i] = v
		case drawn < v:
			y.Data[i] = 1
		}
		y.Size[i] = y.Data[i]
	}
	return y
}

// RandPerm returns the positions of n random numbers, sorted by number. As many of the lowest bits
// of each number as a position needs are ignored.
func (r Random) RandPerm(n int) []int64 {
	unit := uint64(1)
	for unit < uint64(n) {
		unit *= 2
	}
	order := make([]int64, n)
	numbers := make([]uint64, n)
	for i := range order {
		order[i], numbers[i] = int64(i), r.Number(uint64(i))/unit
	}
	slices.SortStableFunc(order, func(a, b int64) int {
		return new(big.Int).SetUint64(numbers[a]).Cmp(new(big.Int).SetUint64(numbers[b]))
	})
	return order
}

// Choice holds the options of Categorical.
type Choice struct {
	Temperature, TopP float64
	TopK              int
}

// Probabilities returns the probabilities of a row's elements, or nil if nothing can be drawn.
func (c Choice) Probabilities(row []float64) []float64 {
	order := make([]int, len(row))
	for j, v := range row {
		order[j] = j
		if math.IsNaN(v) {
			return nil
		}
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case row[a] > row[b]:
			return -1
		case row[a] < row[b]:
			return 1
		}
		return 0
	})
	top := row[order[0]]
	if math.IsInf(top, -1) {
		return nil
	}
	p := make([]float64, len(row))
	if c.Temperature == 0 {
		p[order[0]] = 1
		return p
	}
	all := 0.0
	for rank, j := range order {
		if rank >= c.TopK && row[j] != row[order[c.TopK-1]] {
			break
		}
		p[j] = 1
		if row[j] != top {
			p[j] = math.Exp((row[j] - top) / c.Temperature)
		}
		all += p[j]
	}
	sum, least := 0.0, top
	for _, j := range order {
		if row[j] != least && sum >= c.TopP*all {
			break
		}
		sum, least = sum+p[j], row[j]
	}
	left := 0.0
	for j, v := range row {
		if v < least {
			p[j] = 0
		}
		left += p[j]
	}
	for j := range p {
		p[j] /= left
	}
	return p
}

// Categorical draws an index of every row: the first at which the probabilities up to it exceed the
// row's number, or -1 if nothing can be drawn.
func (r Random) Categorical(x Array, c Choice) (drawn []int32) {
	rows(x, func(i int, row []float64) {
		p := c.Probabilities(row)
		at, sum, number := int32(-1), 0.0, float64(r.Number(uint64(i)))*0x1p-64
		for j, v := range p {
			if sum += v; v > 0 && (at < 0 || sum-v <= number) {
				at = int32(j)
			}
		}
		drawn = append(drawn, at)
	})
	return drawn
}
