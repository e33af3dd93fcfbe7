package browsertest

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// luminance is WCAG 2.1's of a pixel.
func luminance(c color.Color) float64 {
	r, g, b, _ := c.RGBA()
	sum := 0.0
	for i, x := range []uint32{r, g, b} {
		v := float64(x) / 0xffff
		if v > 0.04045 {
			v = math.Pow((v+0.055)/1.055, 2.4)
		} else {
			v /= 12.92
		}
		sum += v * []float64{0.2126, 0.7152, 0.0722}[i]
	}
	return sum
}

// TestContrastOfPixels: the contrast of text in layers of random colours and opacities is that of the pixels drawn.
func TestContrastOfPixels(t *testing.T) {
	Program(t)
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	const rows, height = 26, 30
	var boxes strings.Builder
	for i := range rows {
		colour := func() string { return fmt.Sprintf("#%08x", random.Uint32()) }
		fmt.Fprintf(&boxes, `<div style="position: fixed; left: 600px; width: 300px; height: %dpx; top: %dpx; opacity: %.2f; background: %s"><p id="p%d" style="margin: 0; opacity: %.2f; background: %s; color: %s; font: 20px/30px monospace">████</p></div>`,
			height, i*height, 1-random.Float64()/2, colour(), i, 1-random.Float64()/2, colour(), colour())
	}
	b := Open(t, 1280, 800, site(t)(page(boxes.String())), "true")
	for _, scheme := range []string{"light", "dark"} {
		b.Prefer(scheme)
		reported := map[int]float64{}
		for _, fault := range b.Faults() {
			var row int
			var ratio float64
			_, figure, _ := strings.Cut(fault, " is ")
			_, err := fmt.Sscanf(fault, "contrast: #p%d ", &row)
			require.NoError(t, err, fault)
			_, err = fmt.Sscanf(figure, "%f:1", &ratio)
			require.NoError(t, err, fault)
			reported[row] = ratio
		}
		picture, err := png.Decode(bytes.NewReader(b.Screenshot(false)))
		require.NoError(t, err)
		for i := range rows {
			want := contrast(picture, i*height+height/2)
			got, found := reported[i]
			if found {
				assert.InEpsilon(t, want, got, 0.03, "seed %d, %s, row %d", seed, scheme, i)
			} else {
				assert.Greater(t, want, 4.5*0.97, "seed %d, %s, row %d", seed, scheme, i)
			}
		}
		assert.NotEmpty(t, reported)
	}
}

// contrast is that of the pixels in a row's text and right of it.
func contrast(picture image.Image, y int) float64 {
	text, back := luminance(picture.At(620, y))+0.05, luminance(picture.At(800, y))+0.05
	return max(text, back) / min(text, back)
}
