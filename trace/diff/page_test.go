package diff

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/browsertest"
)

const ready = `document.querySelector("main.ready:not([aria-busy])") !== null`

// pageFile writes a page to a file.
func pageFile(t *testing.T, title string, diffs ...*Diff) (url string) {
	var page bytes.Buffer
	require.NoError(t, Write(&page, title, diffs...))
	file := filepath.Join(t.TempDir(), "diff.html")
	require.NoError(t, os.WriteFile(file, page.Bytes(), 0o600))
	return "file://" + file
}

// cellsOf returns the cells of a dimension's table: the value of those that have one, and else the
// text; of the bar the filled part to the left or right of the middle line.
func cellsOf(b *browsertest.Browser, name string) [][]string {
	return browsertest.Eval[[][]string](b, fmt.Sprintf(`[...document.querySelectorAll("#rows-%s tbody tr")].map((r) => [...r.querySelectorAll("td")].map((c) => {
		const bar = c.querySelector(".change i"), box = c.querySelector(".change")?.getBoundingClientRect(), part = bar?.getBoundingClientRect();
		if (bar) return String(Math.round((200 * (part.width * (part.left + part.width / 2 < box.left + box.width / 2 ? -1 : 1))) / box.width));
		return c.querySelector("data")?.value ?? c.textContent;
	}))`, name))
}

// TestPageFigures: each figure of the page is the Diff's, and a bar has the length and the side of
// its difference.
func TestPageFigures(t *testing.T) {
	browsertest.Program(t)
	d := read(t, runProgram(t, 1, 4).files[recordingFile], runProgram(t, 3, 5).files[recordingFile])[0]
	b := browsertest.Open(t, 1280, 800, pageFile(t, "t", d), ready)
	require.Equal(t, "before → after", browsertest.Eval[string](b, `document.getElementById("about").textContent`))
	require.True(t, browsertest.Eval[bool](b, `document.getElementById("same").hidden`))
	figures := browsertest.Eval[[][]string](b, `[...document.querySelectorAll("#figures dd")].map((f) => [...f.querySelectorAll("data")].map((v) => v.value))`)
	for i, p := range d.Peaks {
		require.Equal(t, []string{fmt.Sprint(p.After.Bytes), fmt.Sprint(p.Before.Bytes), fmt.Sprint(p.Bytes())}, figures[i])
	}
	for by, x := range d.Dimensions {
		var want [][]string
		most := int64(0)
		for _, r := range x.Rows {
			most = max(most, r.Bytes(), -r.Bytes())
		}
		for _, r := range x.Rows {
			name := r.Name
			switch {
			case by == int(byLine):
				name = fmt.Sprintf("%s  %s:%d", filepath.Base(r.Name), filepath.Base(r.File), r.Line)
			case name == "":
				name = "none"
			}
			relative := ""
			switch {
			case r.Bytes() == 0:
			case r.Before.Bytes == 0:
				relative = "new"
			case r.After.Bytes == 0:
				relative = "gone"
			default:
				relative = fmt.Sprintf("%+.1f %%", 100*float64(r.Bytes())/float64(r.Before.Bytes))
			}
			cells := []string{name, fmt.Sprint(r.Bytes()), relative, fmt.Sprint(r.Before.Bytes), fmt.Sprint(r.After.Bytes)}
			if by != int(byStep) {
				cells = append(cells, fmt.Sprintf("%d → %d", r.Before.Blocks, r.After.Blocks))
			}
			want = append(want, append(cells, fmt.Sprintf("%.0f", 100*float64(r.Bytes())/float64(max(most, 1)))))
		}
		require.NotEmpty(t, want, x.Name)
		require.ElementsMatch(t, want, cellsOf(b, x.Name), x.Name)
	}
}

// TestPageOfDevices: each device can be chosen, equal ones too.
func TestPageOfDevices(t *testing.T) {
	browsertest.Program(t)
	list := read(t, []byte(stepLine(1, 0, 10, "")+stepLine(1, 1, 5, "")), []byte(stepLine(1, 0, 12, "")+stepLine(1, 1, 5, "")))
	b := browsertest.Open(t, 1280, 800, pageFile(t, "t", list...), ready)
	require.Equal(t, [][]string{{"1", "2", "+20.0 %", "10", "12", "100"}}, cellsOf(b, "step"))
	b.Run(`(() => { const s = document.getElementById("run"); s.value = "1"; s.onchange(); })()`)
	require.Empty(t, cellsOf(b, "step"))
	require.False(t, browsertest.Eval[bool](b, `document.getElementById("same").hidden`))
	require.Contains(t, browsertest.Eval[string](b, `document.getElementById("dimensions").textContent`), "Not compared: profiles of steps have no call stacks.")
	require.Contains(t, browsertest.Eval[string](b, `document.getElementById("dimensions").textContent`), "1 step without a difference.")
}

// TestPageData: the page's data is the result, and no text of a file is markup.
func TestPageData(t *testing.T) {
	const hostile = `</script><script src="http://x">`
	peak := func(n int) []byte {
		return []byte(stepLine(1, 0, 10, fmt.Sprintf(`,"peak":{"categories":[],"modules":[{"name":%q,"bytes":%d}]}`, hostile, n)))
	}
	list := read(t, peak(1), peak(2))
	var page bytes.Buffer
	require.NoError(t, Write(&page, "<b>t</b>", list...))
	require.NotContains(t, page.String(), "<b>t")
	require.Equal(t, 2, strings.Count(page.String(), "<script"))
	require.Contains(t, page.String(), "default-src 'none'")
	_, data, _ := strings.Cut(page.String(), `id="data">`)
	data, _, _ = strings.Cut(data, "</script>")
	var got []*Diff
	require.NoError(t, json.Unmarshal([]byte(data), &got))
	require.Equal(t, list, got)
	require.Equal(t, hostile, got[0].Dimensions[byModule].Rows[0].Name)
}

// TestLook: the page is readable on a desk and on a phone, in the light and the dark theme.
func TestLook(t *testing.T) {
	browsertest.Program(t)
	var lines []string
	for i := range 60 {
		lines = append(lines, fmt.Sprintf("github.com/some/program/model.(*encoder).Forward.func%d model.go %d %d 0", i%7, 10+i, 1<<20*(i+1)))
	}
	label := func(p *profile.Profile) {
		for i, s := range p.Sample {
			s.Label = map[string][]string{"category": {"activation"}, "module": {fmt.Sprintf("encoder.%d.attention.projection (Linear)", i%30)}}
		}
	}
	for name, files := range map[string][2][]byte{
		"programs": {runProgram(t, 1, 4).files[recordingFile], runProgram(t, 3, 60).files[recordingFile]},
		"heaps":    {heapOf(t, label, lines[:40]...), heapOf(t, label, lines[20:]...)},
		"ranks":    {[]byte(stepLine(1, 0, 10, "") + stepLine(1, 1, 5, "")), []byte(stepLine(1, 0, 12, "") + stepLine(1, 1, 5, ""))},
	} {
		t.Run(name, func(t *testing.T) {
			browsertest.CheckLook(t, pageFile(t, "before.jsonl → after.jsonl", read(t, files[0], files[1])...), ready)
		})
	}
}
