package page

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/browsertest"
)

func TestMain(m *testing.M) { cisterntest.Main(m) }

func open(t *testing.T, width int, p *Page) *browsertest.Browser {
	browsertest.Program(t)
	file := filepath.Join(t.TempDir(), "page.html")
	f, err := os.Create(file)
	require.NoError(t, err)
	require.NoError(t, errors.Join(p.Write(f), f.Close()))
	return browsertest.Open(t, width, 800, "file://"+file, `document.querySelector("main.ready:not([aria-busy])") !== null`)
}

// TestText: text of a user stays text, in the title and in the data.
func TestText(t *testing.T) {
	const text = `</script><script>window.bad = 1</script>&<b>`
	b := open(t, 800, &Page{Title: text, Body: `<p id="out"></p>`, Data: JSON([]string{text}),
		Script: `present(() => { $("out").textContent = JSON.parse($("data").textContent)[0]; }, () => {});`})
	require.Equal(t, text, browsertest.Eval[string](b, `document.title`))
	require.Equal(t, text, browsertest.Eval[string](b, `document.getElementById("name").textContent`))
	require.Equal(t, text, browsertest.Eval[string](b, `document.getElementById("out").textContent`))
	require.False(t, browsertest.Eval[bool](b, `"bad" in window`))
}

// TestWriteFails: the first error of the writer or of the data is returned.
func TestWriteFails(t *testing.T) {
	broken := errors.New("the disk is full")
	p := &Page{Data: func(io.Writer) error { return broken }}
	require.ErrorIs(t, p.Write(io.Discard), broken)
	p.Data = JSON(func() {})
	require.Error(t, p.Write(io.Discard))
	p.Data = JSON(strings.Repeat("x", 100))
	whole := new(strings.Builder)
	require.NoError(t, p.Write(whole))
	for n := range 3 {
		require.ErrorIs(t, p.Write(&limited{left: n, err: broken}), broken, n)
	}
}

// limited accepts a limited number of writes.
type limited struct {
	left int
	err  error
}

func (l *limited) Write(b []byte) (int, error) {
	if l.left == 0 {
		return 0, l.err
	}
	l.left--
	return len(b), nil
}

// TestTicks: the labels of an axis have different texts, which are their values, at every zoom.
func TestTicks(t *testing.T) {
	b := open(t, 800, &Page{Data: JSON(nil), Script: `Object.assign(window, { ticks, timeTicks, stepTicks }); present(() => {}, () => {});`})
	units := map[string]float64{"": 1, "µs": 1, "ms": 1e3, "s": 1e6}
	type tick struct {
		At   float64
		Text string
	}
	for _, r := range [][2]float64{{0, 1}, {0, 0.003}, {1.5, 1.5004}, {0, 7e9}, {999.5, 1000.5}, {4096, 4097}, {123456, 123457.5}, {-1, 3}, {0, 1e-6}} {
		for _, of := range []string{"ticks", "timeTicks", "stepTicks"} {
			list := browsertest.Eval[[]tick](b, fmt.Sprintf(`%s(%g, %g, 8).map((t) => ({ At: t.at, Text: t.text }))`, of, r[0], r[1]))
			require.LessOrEqual(t, len(list), 9, "%s of %v", of, r)
			seen := make(map[string]bool)
			for _, x := range list {
				require.False(t, seen[x.Text], "%s of %v: %v", of, r, list)
				seen[x.Text] = true
				var value float64
				number, unit, _ := strings.Cut(x.Text, " ")
				_, err := fmt.Sscan(strings.ReplaceAll(number, ",", ""), &value)
				require.NoError(t, err, x.Text)
				require.InDelta(t, x.At, value*units[unit], 1e-9+1e-3*(r[1]-r[0]), "%s of %v", of, r)
				require.NotEqual(t, "-0", number)
			}
		}
	}
}

// TestChartLabels: labels of the axes differ and are inside of the picture, whatever the values and
// the width are.
func TestChartLabels(t *testing.T) {
	type label struct {
		Text  string
		From  float64
		To    float64
		Width float64
	}
	for _, width := range []int{390, 1280} {
		b := open(t, width, &Page{Body: `<div><canvas id="chart"></canvas></div>`, Data: JSON(nil), Script: `
const drawn = [], draw = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
  const w = this.measureText(text).width, from = this.textAlign === "right" ? x - w : x;
  drawn.push({ Text: text, From: from, To: from + w, Width: this.canvas.clientWidth });
  draw.call(this, text, x, y);
};
const chart = new Chart($("chart"), { unit: "MiB", scale: MiB, format: mib, label: "values" });
window.show = (x, y) => { drawn.length = 0; chart.set({ x, name: String, series: [{ name: "v", hue: 0, y }], ticksOf: stepTicks }); return drawn; };
window.MiB = MiB;
present(() => {}, () => {});`})
		for _, values := range []string{"[0, 0, 0]", "[144384 * MiB, 1, 2]", "[3]", "[1e-3 * MiB, 2e-3 * MiB, 0]", "[MiB, NaN, 5 * MiB]"} {
			for _, x := range []string{"[1, 2, 3]", "[99999998, 99999999, 100000000]"} {
				list := browsertest.Eval[[]label](b, fmt.Sprintf(`((y) => show(%s.slice(0, y.length), y))(%s)`, x, values))
				require.Greater(t, len(list), 2)
				seen := make(map[string]bool)
				for _, l := range list[:len(list)-1] {
					require.GreaterOrEqual(t, l.From, 0.0, "%s at %d px: %v", values, width, l)
					require.LessOrEqual(t, l.To, l.Width, "%s at %d px: %v", values, width, l)
					require.False(t, seen[l.Text] && l.To < 70, "%s: %v", values, list)
					seen[l.Text] = true
				}
			}
		}
	}
}
