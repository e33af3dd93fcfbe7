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

// luminance is WCAG 2.1's of a pixel that is so many levels lighter.
func luminance(c color.Color, levels float64) float64 {
	r, g, b, _ := c.RGBA()
	sum := 0.0
	for i, x := range []uint32{r, g, b} {
		v := min(1, max(0, float64(x)/0xffff+levels/255))
		if v > 0.04045 {
			v = math.Pow((v+0.055)/1.055, 2.4)
		} else {
			v /= 12.92
		}
		sum += v * []float64{0.2126, 0.7152, 0.0722}[i]
	}
	return sum
}

// TestContrastOfPixels: the contrast of text in layers of random colours and opacities is that of
// the pixels drawn.
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
			least, most := contrast(picture, i*height+height/2)
			if got, found := reported[i]; found {
				assert.GreaterOrEqual(t, got, least-0.01, "seed %d, %s, row %d", seed, scheme, i)
				assert.LessOrEqual(t, got, most, "seed %d, %s, row %d", seed, scheme, i)
			} else {
				assert.GreaterOrEqual(t, most, 4.5, "seed %d, %s, row %d", seed, scheme, i)
			}
		}
		assert.NotEmpty(t, reported)
	}
}

// contrast returns the bounds of the contrast of a row's text and its background, at the right of
// it: each layer was rounded to a level of 255, so that a pixel may be three levels off.
func contrast(picture image.Image, y int) (least, most float64) {
	light, dark := picture.At(620, y), picture.At(800, y)
	if luminance(light, 0) < luminance(dark, 0) {
		light, dark = dark, light
	}
	ratio := func(levels float64) float64 {
		return (luminance(light, levels) + 0.05) / (luminance(dark, -levels) + 0.05)
	}
	return max(1, ratio(-3)), ratio(3)
}
