package surface

import (
	"math"
	"math/rand/v2"
	"reflect"
	"runtime/metrics"

	"github.com/stretchr/testify/require"
)

// extremes are sizes, counts and offsets near the limits of their types.
var extremes = []int64{0, 1, 2, 3, -1, 1 << 30, 1<<31 - 1, 1 << 31, 1<<31 + 1, 1<<32 - 1, 1 << 32, 1<<32 + 1, 1 << 46, 1 << 61, 1 << 62, 1<<62 + 1,
	math.MaxInt64 - 511, math.MaxInt64 - 1, math.MaxInt64, math.MinInt64, math.MinInt64 + 1, -1 << 31, -1 << 32}

// Extreme calls everything that takes a number rounds times with numbers near the limits of their
// types, also in structs and lists. No call may panic, nor allocate more than most bytes of Go's
// heap.
func (s *Surface) Extreme(seed uint64, rounds int, most uint64) {
	rng := rand.New(rand.NewPCG(seed, 2))
	s.T.Logf("seed %d", seed)
	for _, f := range s.functions() {
		in, takes := f.in(), false
		for _, typ := range in {
			takes = takes || numeric(typ)
		}
		for range rounds {
			if !takes {
				break
			}
			args := s.arguments(in)
			for i := range args {
				disturb(rng, args[i])
			}
			var shown []any
			for _, a := range args {
				shown = append(shown, a.Interface())
			}
			before := allocated()
			panicked, _ := s.call(f, args)
			require.Nil(s.T, panicked, "seed %d: %s of %v panicked", seed, f.name, shown)
			require.Less(s.T, allocated()-before, most, "seed %d: bytes that %s of %v allocated", seed, f.name, shown)
		}
	}
}

// numeric reports whether values of the type contain numbers.
func numeric(typ reflect.Type) bool {
	switch k := typ.Kind(); k {
	case reflect.Struct:
		for i := range typ.NumField() {
			if typ.Field(i).IsExported() && numeric(typ.Field(i).Type) {
				return true
			}
		}
		return false
	case reflect.Slice:
		return numeric(typ.Elem())
	case reflect.Pointer:
		return plain(typ.Elem()) && numeric(typ.Elem())
	default:
		return k >= reflect.Int && k <= reflect.Uintptr && k != reflect.Uint8
	}
}

// plain reports whether the type is a struct with only exported fields, which may be copied.
func plain(typ reflect.Type) bool {
	if typ.Kind() != reflect.Struct {
		return false
	}
	for i := range typ.NumField() {
		if !typ.Field(i).IsExported() {
			return false
		}
	}
	return true
}

// disturb puts extremes into most of the numbers of v, which must be settable.
func disturb(rng *rand.Rand, v reflect.Value) {
	n := extremes[rng.IntN(len(extremes))]
	switch k := v.Kind(); {
	case k == reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				disturb(rng, v.Field(i))
			}
		}
	case k == reflect.Pointer && numeric(v.Type()) && !v.IsNil():
		c := reflect.New(v.Type().Elem())
		c.Elem().Set(v.Elem())
		disturb(rng, c.Elem())
		v.Set(c)
	case k == reflect.Slice && numeric(v.Type()):
		if v.Type().Elem().Kind() != reflect.Struct {
			v.Set(reflect.MakeSlice(v.Type(), rng.IntN(5), 5))
		} else {
			v.Set(reflect.AppendSlice(reflect.MakeSlice(v.Type(), 0, v.Len()), v))
		}
		for i := range v.Len() {
			disturb(rng, v.Index(i))
		}
	case rng.IntN(4) == 0:
	case v.CanInt():
		v.SetInt(n)
	case v.CanUint():
		v.SetUint(uint64(n))
	}
}

// allocated returns the bytes of Go's heap that were allocated since the program began.
func allocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
