// Package browsertest drives a headless Chromium over pages of the module. A test opens a page with
// [Open], or checks its look with [CheckLook].
package browsertest

import (
	"context"
	"fmt"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/race"
)

// Browser is a headless Chromium with one page open. It belongs to the test's goroutine.
type Browser struct {
	t   testing.TB
	ctx context.Context

	mu       sync.Mutex
	messages []string // errors and warnings of the console
	expected []string // parts of messages that are not faults
}

// Program returns the path of Chromium. It skips the test if there is none, under the race
// detector, which sees nothing of it, and with -short, since a browser takes seconds for each page.
// A stage of the gate runs these tests in full when trace/report or trace/live changes.
func Program(t testing.TB) string {
	t.Helper()
	if race.Enabled {
		t.Skip("with the race detector pages are written and not opened")
	}
	if testing.Short() {
		t.Skip("with -short no page is opened in a browser; go test without it opens them all")
	}
	for _, program := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(program); err == nil {
			return path
		}
	}
	t.Skip("there is no Chromium: Debian's package chromium has it")
	return ""
}

// Open opens a page in a window of so many pixels, and waits until the expression ready is true.
// Errors and warnings of the console fail the test at its end.
func Open(t testing.TB, width, height int, url, ready string) *Browser {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(Program(t)), chromedp.NoSandbox, chromedp.WSURLReadTimeout(time.Minute))
	ctx, endBrowser := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, endPage := chromedp.NewContext(ctx)
	t.Cleanup(endBrowser)
	t.Cleanup(endPage)
	b := &Browser{t: t, ctx: ctx}
	require.NoError(t, chromedp.Do(ctx, chromedp.EmulateViewport(int64(width), int64(height))))
	console := chromedp.Console(ctx)
	go func() {
		for m, err := range console {
			if err != nil {
				return
			}
			b.mu.Lock()
			b.messages = append(b.messages, fmt.Sprint(m.Type, ": ", m.Text))
			b.mu.Unlock()
		}
	}()
	b.Do(chromedp.Navigate(url))
	b.Wait(ready)
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		require.Empty(t, b.unexpected(), "the console")
	})
	return b
}

// Do runs steps that must not take long.
func (b *Browser) Do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	require.NoError(b.t, chromedp.Do(ctx, steps...))
}

// Wait waits until an expression is true.
func (b *Browser) Wait(expression string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	_, err := chromedp.Run(ctx, chromedp.Poll[bool](expression))
	require.NoError(b.t, err, expression)
}

// Eval returns the value of an expression.
func Eval[T any](b *Browser, expression string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	require.NoError(b.t, err, expression)
	return v
}

// Run runs statements.
func (b *Browser) Run(statements ...string) {
	b.t.Helper()
	for _, s := range statements {
		Eval[int](b, s+"; 0")
	}
}

// Prefer sets the system's colour scheme, light or dark.
func (b *Browser) Prefer(scheme string) {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
	require.NoError(b.t, err)
}

// Keys presses keys, one after the other.
func (b *Browser) Keys(keys ...string) {
	b.t.Helper()
	for _, k := range keys {
		b.Do(chromedp.KeyEvent(k))
	}
}

// PDF returns the page as printed.
func (b *Browser) PDF() []byte {
	b.t.Helper()
	pdf, err := chromedp.Run(b.ctx, chromedp.PrintToPDF())
	require.NoError(b.t, err)
	return pdf
}

// Screenshot returns a PNG of the window, or of the whole page.
func (b *Browser) Screenshot(whole bool) []byte {
	b.t.Helper()
	capture := chromedp.CaptureScreenshot()
	if whole {
		capture = chromedp.FullScreenshot(100)
	}
	picture, err := chromedp.Run(b.ctx, capture)
	require.NoError(b.t, err)
	return picture
}
