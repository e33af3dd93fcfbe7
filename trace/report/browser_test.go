package report

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/browsertest"
)

// browser is an open page of reports.
type browser struct {
	*browsertest.Browser
	t testing.TB
}

// openPage writes a page of reports, and opens it in a window of a size in pixels; without a
// browser the test is skipped. A message of the console about the page fails the test at its end.
func openPage(t testing.TB, width, height int, reports ...*Report) *browser {
	t.Helper()
	var page bytes.Buffer
	require.NoError(t, Write(&page, reports...))
	browsertest.Program(t)
	file := filepath.Join(t.TempDir(), "report.html")
	require.NoError(t, os.WriteFile(file, page.Bytes(), 0o600))

	return &browser{browsertest.Open(t, width, height, "file://"+file, `document.querySelector("main.ready:not([aria-busy])") !== null`), t}
}

// choose returns the statement that chooses a value of a select element.
func choose(id string, value any) string {
	return fmt.Sprintf(`(() => { const s = document.getElementById(%q); s.value = %q; s.onchange(); })()`, id, fmt.Sprint(value))
}

// held returns the bytes held at the moment by the page: in its text, in the graph, and in the
// table.
func (b *browser) held() (text, graph, table int64) {
	b.t.Helper()
	const more = `(() => { for (let b; (b = document.querySelector("#holders .more button")); ) b.click(); })(), `
	return browsertest.Eval[int64](b.Browser, `Number(document.querySelector("#held data").value)`),
		browsertest.Eval[int64](b.Browser, `[...document.querySelectorAll("#flame .cell[data-depth='1']")].reduce((a, c) => a + Number(c.dataset.bytes), 0)`),
		browsertest.Eval[int64](b.Browser, more+`[...document.querySelectorAll("#holders tbody tr")].reduce((a, r) => a + Number(r.querySelector("data").value), 0)`)
}

// headline returns one of the figures on top, in bytes.
func (b *browser) headline(name string) int64 {
	b.t.Helper()
	return browsertest.Eval[int64](b.Browser, fmt.Sprintf(`Number([...document.querySelectorAll("#figures div")].find((d) => d.querySelector("dt").textContent === %q).querySelector("data").value)`, name))
}

// column returns a column of a table: the values of its amounts, or its text.
func (b *browser) column(table string, i int) []float64 {
	b.t.Helper()
	return browsertest.Eval[[]float64](b.Browser, fmt.Sprintf(`[...document.querySelectorAll("#%s tbody tr")].map((r) => { const c = r.cells[%d]; return Number(c.querySelector("data")?.value ?? c.textContent.replaceAll(",", "")); })`, table, i))
}
