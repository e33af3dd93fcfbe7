package browsertest

import (
	"context"
	_ "embed"
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The script of Faults, in the order in which its parts use each other.
var (
	//go:embed look/dom.js
	lookDOM string
	//go:embed look/contrast.js
	lookContrast string
	//go:embed look/cut.js
	lookCut string
	//go:embed look/keyboard.js
	lookKeyboard string
	//go:embed look/names.js
	lookNames string
	//go:embed look/look.js
	lookMain string
)

// CheckLook opens a page as Open does, in windows of 1280x800 and of 390x844 pixels, in light and
// in dark, and fails the test for each of the page's Faults.
func CheckLook(t testing.TB, url, ready string) {
	t.Helper()
	for _, size := range [][2]int{{1280, 800}, {390, 844}} {
		b := Open(t, size[0], size[1], url, ready)
		for _, scheme := range []string{"light", "dark"} {
			b.Prefer(scheme)
			for _, fault := range b.Faults() {
				assert.Fail(t, fmt.Sprintf("%d px, %s: %s", size[0], scheme, fault))
			}
		}
	}
}

// Faults returns a line for each fault of the page as it is shown now: text of less contrast than
// 4.5:1 with the backgrounds of its ancestors (images and canvases are ignored), text that is cut,
// lies outside of the window or overlaps other text, a part that only a pointer reaches, an
// invisible focus, a picture or a control without a name. In a window of 1280 pixels and more a
// part that scrolls sideways counts as cut. Faults moves the focus.
func (b *Browser) Faults() []string {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	// A page without a window manager is not focused, and shows no focus.
	_, err := chromedp.Call(ctx, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true})
	require.NoError(b.t, err)
	script := "(async () => {" + lookDOM + lookContrast + lookCut + lookKeyboard + lookNames + lookMain + "})()"
	faults, err := chromedp.Run(ctx, chromedp.Evaluate[[]string](script, chromedp.EvalAwaitPromise))
	require.NoError(b.t, err)
	return faults
}
