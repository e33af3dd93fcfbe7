package device_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// TestCopy2DSpans compares Spans with a walk over all rows, for all small copies.
func TestCopy2DSpans(t *testing.T) {
	host := make([]byte, 40)
	for i := range 5 * 5 * 7 * 7 * 9 {
		width, height, dstPitch, srcPitch := int64(i%5), int64(i/5%5), int64(i/25%7), int64(i/175%7)
		c := device.Copy2D{Width: width, Height: height, Dst: 100, DstPitch: dstPitch, Src: 100 + device.Ptr(i/1225)*4 - 16, SrcPitch: srcPitch}
		touched := map[device.Ptr]bool{}
		var last [2]int64
		first := [2]device.Ptr{c.Dst, c.Src}
		for k, pitch := range []int64{dstPitch, srcPitch} {
			for row := range height {
				last[k] = max(last[k], row*pitch+width)
			}
		}
		overlap := false
		for p := c.Dst; p < c.Dst+device.Ptr(last[0]); p++ {
			touched[p] = true
		}
		for p := first[1]; p < first[1]+device.Ptr(last[1]); p++ {
			overlap = overlap || touched[p]
		}
		nothing := width == 0 || height == 0
		dst, src, err := c.Spans("it")
		if dstPitch < width || srcPitch < width || !nothing && overlap {
			require.ErrorIs(t, err, device.ErrInvalid, "%+v", c)
			continue
		}
		require.NoError(t, err, "%+v", c)
		if nothing {
			last = [2]int64{}
		}
		require.Equal(t, last, [2]int64{dst, src}, "%+v", c)

		// A slice of host memory must be at least that long.
		for _, up := range []bool{true, false} {
			for _, n := range []int64{last[0], last[0] - 1, last[1], last[1] - 1, 0} {
				n = max(n, 0)
				b, need := c, last[0]
				if up {
					b.Src, b.SrcHost, need = 0, host[:n], last[1]
				} else {
					b.Dst, b.DstHost = 0, host[:n]
				}
				_, _, err := b.Spans("it")
				if n < need {
					require.ErrorIs(t, err, device.ErrInvalid, "%+v", b)
				} else {
					require.NoError(t, err, "%+v", b)
				}
			}
		}
	}
	for _, c := range []device.Copy2D{
		{Width: 8, Height: math.MaxInt64, Dst: 1, DstPitch: 8, Src: 99, SrcPitch: 8},
		{Width: math.MaxInt64 - 1, Height: 2, Dst: 1, DstPitch: math.MaxInt64 - 1, Src: 99, SrcPitch: math.MaxInt64 - 1},
		{Width: 4, Height: 1 << 61, Dst: 1, DstPitch: 4, Src: 99, SrcPitch: 4},
	} {
		_, _, err := c.Spans("it")
		require.ErrorContains(t, err, "more than any memory")
	}
}
