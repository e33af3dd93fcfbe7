package device

import (
	"fmt"
	"math"
)

// Copy2D describes a copy of rows at equal distances, such as some columns of a matrix
// (CUDA_MEMCPY2D). Each side is either device memory or a slice of host memory, and at least one
// side is device memory.
type Copy2D struct {
	// Width is the length of a row in bytes, and Height the number of rows. If either is 0 nothing
	// is copied.
	Width, Height int64

	// Dst or DstHost is the destination of the first row. DstPitch is the number of bytes from the
	// start of a row to the start of the next one, at least Width.
	Dst      Ptr
	DstHost  []byte
	DstPitch int64

	// Src or SrcHost is the source of the first row. SrcPitch corresponds to DstPitch.
	Src      Ptr
	SrcHost  []byte
	SrcPitch int64
}

// Spans returns the numbers of bytes from the start of the first row to the end of the last one, at
// the destination and at the source: (Height-1)*Pitch + Width. Both are 0 if nothing is copied.
// Backends call it to validate c: for an invalid copy it returns an error of the named device that
// wraps [ErrInvalid]. It does not check that the memory is live and, on the host, pinned; backends
// do.
func (c *Copy2D) Spans(device string) (dst, src int64, err error) {
	problem := c.problem()
	if problem == "" && c.Width > 0 && c.Height > 0 {
		if dst, problem = c.span("destination", c.DstPitch, c.DstHost); problem == "" {
			src, problem = c.span("source", c.SrcPitch, c.SrcHost)
		}
		apart := uint64(max(c.Dst, c.Src) - min(c.Dst, c.Src))
		first := src // the span of the side that begins first
		if c.Dst < c.Src {
			first = dst
		}
		if problem == "" && c.DstHost == nil && c.SrcHost == nil && apart < uint64(first) {
			problem = fmt.Sprintf("destination and source are %d bytes apart; ranges of %d and %d bytes overlap", apart, dst, src)
		}
	}
	if problem != "" {
		return 0, 0, &Error{Op: "Copy2D", Device: device, Code: CodeInvalidValue, Detail: problem, Err: ErrInvalid}
	}
	return dst, src, nil
}

// problem describes what is wrong with c apart from its spans, or returns "".
func (c *Copy2D) problem() string {
	switch {
	case c == nil:
		return "the copy is nil"
	case c.Width < 0 || c.Height < 0:
		return fmt.Sprintf("%d rows of %d bytes; sizes are not negative", c.Height, c.Width)
	case c.DstPitch < c.Width:
		return fmt.Sprintf("the destination's pitch is %d bytes, less than the rows' %d", c.DstPitch, c.Width)
	case c.SrcPitch < c.Width:
		return fmt.Sprintf("the source's pitch is %d bytes, less than the rows' %d", c.SrcPitch, c.Width)
	case c.Dst != 0 && c.DstHost != nil:
		return "there are two destinations; set Dst or DstHost"
	case c.Src != 0 && c.SrcHost != nil:
		return "there are two sources; set Src or SrcHost"
	case c.DstHost != nil && c.SrcHost != nil:
		return "destination and source are both on the host; one must be the device's"
	case c.Width == 0 || c.Height == 0:
		return ""
	case c.Dst == 0 && c.DstHost == nil:
		return "there is no destination; set Dst or DstHost"
	case c.Src == 0 && c.SrcHost == nil:
		return "there is no source; set Src or SrcHost"
	}
	return ""
}

// span returns the span of one side, or describes what is wrong with it.
func (c *Copy2D) span(side string, pitch int64, host []byte) (bytes int64, problem string) {
	if c.Height-1 > (math.MaxInt64-c.Width)/pitch {
		return 0, fmt.Sprintf("%d rows, %d bytes apart, of the %s are more than any memory", c.Height, pitch, side)
	}
	bytes = (c.Height-1)*pitch + c.Width
	if host != nil && int64(len(host)) < bytes {
		return 0, fmt.Sprintf("the %s has %d bytes; %d rows of %d bytes, %d bytes apart, take %d", side, len(host),
			c.Height, c.Width, pitch, bytes)
	}
	return bytes, ""
}
