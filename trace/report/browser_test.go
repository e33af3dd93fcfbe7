package report

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/race"
)

// browser is a headless Chromium with one page open.
type browser struct {
	t   testing.TB
	ctx context.Context

	mu       sync.Mutex
	messages []string // errors and warnings of the console
}

// chromium is the program; the test is skipped if there is none. The race detector sees nothing of it.
func chromium(t testing.TB) string {
	t.Helper()
	if race.Enabled {
		t.Skip("with the race detector pages are written and not opened")
	}
	for _, program := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(program); err == nil {
			return path
		}
	}
	t.Skip("there is no Chromium: Debian's package chromium has it")
	return ""
}

// openPage opens reports in a window of so many pixels. What the console says against the page fails the test at its end.
func openPage(t testing.TB, width, height int, reports ...*Report) *browser {
	t.Helper()
	program := chromium(t)
	var page bytes.Buffer
	require.NoError(t, Write(&page, reports...))
	file := filepath.Join(t.TempDir(), "report.html")
	require.NoError(t, os.WriteFile(file, page.Bytes(), 0o600))

	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.WSURLReadTimeout(time.Minute))
	ctx, endBrowser := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, endPage := chromedp.NewContext(ctx)
	t.Cleanup(endBrowser)
	t.Cleanup(endPage)
	b := &browser{t: t, ctx: ctx}
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
	b.do(chromedp.Navigate("file://" + file))
	b.wait(`document.querySelector("main.ready:not([aria-busy])") !== null`)
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		require.Empty(t, b.messages, "the console")
	})
	return b
}

// do is a step that must not take long.
func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	require.NoError(b.t, chromedp.Do(ctx, steps...))
}

// wait waits until an expression is true.
func (b *browser) wait(expression string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	_, err := chromedp.Run(ctx, chromedp.Poll[bool](expression))
	require.NoError(b.t, err, expression)
}

// eval is the value of an expression.
func eval[T any](b *browser, expression string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	require.NoError(b.t, err, expression)
	return v
}

// run runs statements.
func (b *browser) run(statements ...string) {
	b.t.Helper()
	for _, s := range statements {
		eval[int](b, s+"; 0")
	}
}

// choose is the statement that chooses a value of a select element.
func choose(id string, value any) string {
	return fmt.Sprintf(`(() => { const s = document.getElementById(%q); s.value = %q; s.onchange(); })()`, id, fmt.Sprint(value))
}

// prefer is the system's colour scheme, light or dark.
func (b *browser) prefer(scheme string) {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
	require.NoError(b.t, err)
}

// keys presses keys, one after the other.
func (b *browser) keys(keys ...string) {
	b.t.Helper()
	for _, k := range keys {
		b.do(chromedp.KeyEvent(k))
	}
}

// held is what the page says is held at the moment, in bytes: in its text, in the graph, and in the table.
func (b *browser) held() (text, graph, table int64) {
	b.t.Helper()
	const more = `(() => { for (let b; (b = document.querySelector("#holders .more button")); ) b.click(); })(), `
	return eval[int64](b, `Number(document.querySelector("#held data").value)`),
		eval[int64](b, `[...document.querySelectorAll("#flame .cell[data-depth='1']")].reduce((a, c) => a + Number(c.dataset.bytes), 0)`),
		eval[int64](b, more+`[...document.querySelectorAll("#holders tbody tr")].reduce((a, r) => a + Number(r.querySelector("data").value), 0)`)
}

// column is a column of a table as numbers: the values of its amounts, or its text.
func (b *browser) column(table string, i int) []float64 {
	b.t.Helper()
	return eval[[]float64](b, fmt.Sprintf(`[...document.querySelectorAll("#%s tbody tr")].map((r) => { const c = r.cells[%d]; return Number(c.querySelector("data")?.value ?? c.textContent.replaceAll(",", "")); })`, table, i))
}
