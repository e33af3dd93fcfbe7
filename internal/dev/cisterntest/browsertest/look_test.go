package browsertest

import (
	"bytes"
	"fmt"
	"image/png"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// style is a page's own: ink on paper in both schemes.
const style = `<style>
:root { color-scheme: light dark; --ink: light-dark(#222, #ddd); --paper: light-dark(#fff, #111); background: var(--paper); color: var(--ink) }
body { font: 15px/1.5 sans-serif }
button, input, select { font: inherit; color: var(--ink); background: var(--paper) }
a { color: var(--ink) }
::placeholder { color: inherit; opacity: 1 }
</style>`

// site serves pages by their text.
func site(t testing.TB) func(page string) string {
	pages := map[string]string{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprint(w, pages[r.URL.Path])
	}))
	t.Cleanup(server.Close)
	return func(page string) string {
		path := fmt.Sprintf("/%d", len(pages))
		pages[path] = page
		return server.URL + path
	}
}

// page is a page without a fault, around a part.
func page(part string) string {
	return `<!doctype html><html lang="en"><meta name="viewport" content="width=device-width"><link rel="icon" href="data:,"><title>t</title>` + style + `<h1>Heading</h1>` + part
}

// good are parts without a fault, each similar to a bad one.
var good = []string{
	`<p style="color: light-dark(#767676, #7d7d7d)">at the bar</p>`,
	`<p style="opacity: .5; position: absolute; visibility: hidden; color: #888; background: #888">hidden</p>`,
	`<a href="#x" style="position: absolute; left: -9999px" onfocus="this.style.left = 0" onblur="this.style.left = '-9999px'">Skip</a>`,
	`<span style="position: absolute; width: 1px; height: 1px; overflow: hidden; white-space: nowrap">for a reader of the screen</span>`,
	`<div style="background: #000"><p style="background: rgb(255 255 255 / .8); color: #000">on a layer</p></div>`,
	`<svg width="90" height="20" aria-label="bar"><rect width="90" height="20" fill="#000"/><text x="5" y="15" fill="#fff">in a bar</text></svg>`,
	`<svg width="90" height="20" aria-label="bar"><circle cx="45" cy="10" r="9" fill="#000" opacity="0"/><g opacity=".1"><rect width="90" height="20" fill="#000"/></g><text x="5" y="15" fill="light-dark(#000, #fff)">faint</text><rect width="0" height="20" fill="#000"/></svg>`,
	`<svg width="90" height="20" aria-label="bar"><path d="M0 0H90V20H0ZM1 1V19H89V1Z" fill="#000" fill-rule="evenodd"/><text x="5" y="15" fill="currentColor">in a frame</text></svg>`,
	`<div style="position: relative; height: 40px"><canvas aria-hidden="true" height="40"></canvas><b style="position: absolute; left: 0; top: 0">on a canvas</b></div>`,
	`<div style="overflow: hidden; width: 100px">short</div>`,
	`<div style="overflow: hidden; width: 20px; height: 20px"><span style="position: absolute">not cut: its block is another</span></div>`,
	`<div tabindex="0" style="overflow: auto; height: 30px"><p>1<p>2<p>3</div>`,
	`<p style="position: fixed; margin: 0; top: 30px; left: 10px; background: var(--paper)">a tip on the heading</p>`,
	`<p style="line-height: 1; font-size: 30px">One<br>Two</p><p style="line-height: .8; margin: 0">xxx</p><p style="line-height: .8; margin: 0">xxx</p>`,
	`<label>Name <input value="x"></label> <label>Choice <select><option>a longer choice</select></label> <input aria-label="Search" placeholder="Search">`,
	`<button onclick="0">Go</button><button aria-label="Close">×</button>`,
	`<div role="tree"><p role="treeitem" tabindex="0">a</p><p role="treeitem" tabindex="-1">b</p></div>`,
	`<table><tr onclick="0" style="cursor: pointer"><td><button>Row</button></table>`,
	`<svg width="50" height="20" role="img"><title>named</title><svg width="9" height="9"><rect width="9" height="9"/></svg></svg>`,
	`<svg width="90" height="40" aria-hidden="true"><g class="x"><text class="tick" x="5" y="15" fill="currentColor">1</text></g><g class="y"><text class="tick" x="5" y="35" fill="currentColor">1</text></g></svg>`,
	`<style>#q::before { content: "» "; }</style><p id="q">quote</p>`,
	`<style>@keyframes fade { from { color: light-dark(#888, #666) } } #t { animation: fade 60s }</style><p id="t">slow</p>`,
}

// bad are parts with one fault each, by what its line must contain.
var bad = []struct{ part, kind, what string }{
	{`<p id="x" style="color: light-dark(#777, #757575)">grey</p>`, "contrast: #x \"grey\": ", ":1, below 4.5:1"},
	{`<p style="color: #777; background: #fff">grey</p>`, "contrast: html > body > p \"grey\"", "#777777 on #ffffff is 4.47:1"},
	{`<h2 style="font-size: 60px; color: #808080; background: #fff">large</h2>`, "contrast", "3.94:1"},
	{`<div style="background: #fff"><div style="opacity: .5"><p style="color: #000">half</p></div></div>`, "contrast", "#808080 on #ffffff is 3.97:1"},
	{`<div style="background: #fff"><p style="color: rgb(0 0 0 / .5)">half</p></div>`, "contrast", "#7f7f7f on #ffffff is 4.00:1"},
	{`<div style="background: #000"><p style="background: rgb(255 255 255 / .3); color: #000">on a layer</p></div>`, "contrast", "#000000 on #4d4d4d"},
	{`<p style="color: color-mix(in oklab, #808080 100%, red); background: #fff">mixed</p>`, "contrast", "3.94:1"},
	{`<button disabled style="color: #aaa; background: #fff">Off</button>`, "contrast: html > body > button \"Off\"", "2.32:1"},
	{`<input aria-label="n" placeholder="hint" style="background: #fff">
	<style>::placeholder { color: #999 }</style>`, "contrast: html > body > input::placeholder \"hint\"", "2.84:1"},
	{`<input aria-label="n" value="v" style="color: #999; background: #fff">`, "contrast: html > body > input \"v\"", "2.84:1"},
	{`<select aria-label="n" style="color: #999; background: #fff"><option>one</select>`, "contrast: html > body > select \"one\"", "2.84:1"},
	{`<style>#x { background: #fff; color: #000 } #x::after { content: "new"; color: #999 }</style><p id="x">text</p>`, "contrast: #x::after", "2.84:1"},
	{`<svg width="90" height="20" aria-label="bar" style="background: #fff"><rect width="90" height="20" fill="#000"/><text x="5" y="15" fill="#333">in</text></svg>`, "contrast", "#333333 on #000000"},
	{`<svg width="90" height="20" aria-label="bar" style="background: #fff"><rect width="20" height="20" fill="#000"/><text x="5" y="15" fill="#000">half on it</text></svg>`, "contrast", "#000000 on #000000 is 1.00:1"},

	{`<style>:root { background: none }</style><p id="x" style="color: light-dark(#aaa, #333)">on the window</p>`, "contrast: #x", ":1, below"},

	{`<div style="width: 2000px; height: 1px"></div>`, "cut: html: the page is 20", " px wide in a window of"},
	{`<div style="overflow: hidden; width: 60px; white-space: nowrap">longer than that</div>`, "cut: html > body > div \"longer than that\"", "60 px of its width"},
	{`<div style="overflow: hidden; text-overflow: ellipsis; width: 60px; white-space: nowrap">longer than that</div>`, "cut", "60 px of its width"},
	{`<div style="overflow: clip; width: 60px; white-space: nowrap"><b>longer than that</b></div>`, "cut: html > body > div > b", "of its width lie outside of html > body > div"},
	{`<div style="overflow: hidden; height: 15px">one<br>two</div>`, "cut", "shows 15 px of its height"},
	{`<div style="overflow: hidden; height: 15px"><p style="margin: 10px">low</p></div>`, "cut", "of its height lie outside"},
	{`<div style="overflow: hidden"><p style="margin-left: -30px">to the left</p></div>`, "cut", "of its width lie outside"},
	{`<p style="margin-left: -30px">to the left</p>`, "cut", "lies from -22 to"},
	{`<p style="position: fixed; left: -999px">gone</p>`, "cut", "lies from -999 to"},
	{`<p style="position: fixed; left: calc(100vw - 20px); white-space: nowrap">beyond the window</p>`, "cut: html > body > p", "lies from "},
	{`<input aria-label="n" value="a value that is too long" style="width: 50px">`, "cut: html > body > input", "of its width"},
	{`<select aria-label="n" style="width: 50px"><option>a choice that is too long</select>`, "cut: html > body > select", "the choice needs"},
	{`<svg width="50" height="20" aria-label="chart"><text x="30" y="15" fill="currentColor">outside</text></svg>`, "cut: html > body > svg > text", "lie outside of html > body > svg"},
	{`<svg width="50" height="20" aria-label="chart" style="overflow: visible"><text x="30" y="15" fill="currentColor">outside</text></svg>`, "cut", "lie outside of html > body > svg"},
	{`<div style="position: relative; height: 60px"><p style="position: absolute; left: 0">under it</p><p style="position: absolute; left: 10px; top: 3px">above it</p></div>`, "overlap", "lies on html > body > div > p:nth-of-type(2) \"above it\" by "},
	{`<svg width="90" height="20" aria-label="axis"><text class="tick" x="5" y="15" fill="currentColor">1 000</text><text class="tick" x="30" y="15" fill="currentColor">2 000</text></svg>`, "overlap", "lies on"},

	{`<div style="overflow: auto; height: 30px"><p>1<p>2<p>3</div>`, "keyboard: html > body > div", "scrolls and cannot be reached"},
	{`<div onclick="0">Go</div>`, "keyboard: html > body > div \"Go\"", "has a click handler"},
	{`<div id="x">Go</div><script>x.onclick = () => 0</script>`, "keyboard: #x", "has a click handler"},
	{`<span role="button">Go</span>`, "keyboard", "has the role button"},
	{`<span style="cursor: pointer">Go <b>on</b></span>`, "keyboard: html > body > span \"Go on\"", "pointer"},
	{`<span role="button" tabindex="-1">Go</span>`, "keyboard", "has the role button"},
	{`<style>a:focus { outline: none }</style><a href="#x">Go</a>`, "focus: html > body > a \"Go\"", "looks the same"},
	{`<style>a:focus { outline: 2px solid transparent }</style><a href="#x">Go</a>`, "focus", "looks the same"},
	{`<a href="#x" style="position: absolute; left: -9999px">Skip</a>`, "cut: html > body > a", "lies from -9999 to"},
	{`<a href="#x" style="position: absolute; left: -9999px; color: #888; background: #fff" onfocus="this.style.left = 0" onblur="this.style.left = '-9999px'">Skip</a>`, "contrast: html > body > a", "3.54:1"},
	{`<button onfocus="this.blur()">Go</button>`, "keyboard: html > body > button", "does not take the focus"},

	{`<h1>Another</h1>`, "names: html", "has 2 headings h1"},
	{`<script>document.documentElement.lang = ""</script>`, "names: html", "lang"},
	{`<script>document.title = " "</script>`, "names: html", "title"},
	{`<canvas></canvas>`, "names: html > body > canvas", "no name"},
	{`<svg width="5" height="5"></svg>`, "names: html > body > svg", "no name"},
	{`<img width="5" height="5" src="data:image/gif;base64,R0lGODlhAQABAAAAACw=">`, "names: html > body > img", "no name"},
	{`<input>`, "names: html > body > input", "no label"},
	{`<select><option>a</select>`, "names: html > body > select", "no label"},
	{`<button></button>`, "names: html > body > button", "no label"},
}

// wideTable scrolls sideways in a narrow window.
const wideTable = `<div %s style="overflow-x: auto"><table style="min-width: 1400px"><tr><td>left<td style="text-align: right">right</table></div>`

// TestFaults: each fault is found alone, in both schemes and both windows, and the similar good
// parts have none.
func TestFaults(t *testing.T) {
	Program(t)
	serve := site(t)
	b := Open(t, 1280, 800, serve(page("")), "true")
	look := func(part string) []string {
		b.Do(chromedp.Navigate(serve(page(part))))
		return b.Faults()
	}
	for width, scheme := range map[int64]string{1280: "light", 390: "dark"} {
		b.Do(chromedp.EmulateViewport(width, 800))
		b.Prefer(scheme)
		for _, part := range good {
			assert.Empty(t, look(part), "%s: %s", scheme, part)
		}
		for _, c := range bad {
			faults := look(c.part)
			if assert.Len(t, faults, 1, "%s: %s", scheme, c.part) {
				assert.True(t, strings.HasPrefix(faults[0], c.kind), "%s: %s: %s", scheme, c.part, faults[0])
				assert.Contains(t, faults[0], c.what, "%s: %s", scheme, c.part)
			}
		}
	}
	b.Do(chromedp.EmulateViewport(390, 800))
	assert.Empty(t, look(fmt.Sprintf(wideTable, `tabindex="0"`)))
	assert.Equal(t, []string{`keyboard: html > body > div "right": scrolls sideways and cannot be reached by keyboard: 1400 px in 374 px`}, look(fmt.Sprintf(wideTable, "")))
	b.Do(chromedp.EmulateViewport(1280, 800))
	assert.Equal(t, []string{`cut: html > body > div "right": scrolls sideways in a window of 1280 px: 1400 px in 1264 px`}, look(fmt.Sprintf(wideTable, `tabindex="0"`)))
}

// recorder notes failures instead of failing.
type recorder struct {
	testing.TB
	failures []string
}

func (r *recorder) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

// TestCheckLook: a page is checked in two windows and two schemes, and each fault fails the test.
func TestCheckLook(t *testing.T) {
	Program(t)
	serve := site(t)
	r := &recorder{TB: t}
	CheckLook(r, serve(page(`<a href="#x">good</a>`)), "true")
	require.Empty(t, r.failures)
	CheckLook(r, serve(page(`<p style="color: light-dark(#999, #fff)">a</p><b style="color: light-dark(#000, #555)">b</b><div style="width: 600px; height: 1px"></div>`)), "true")
	for i, want := range []string{
		"1280 px, light: contrast: html > body > p", "1280 px, dark: contrast: html > body > b",
		"390 px, light: contrast: html > body > p", "390 px, light: cut: html: the page is 608 px wide",
		"390 px, dark: contrast: html > body > b", "390 px, dark: cut: html: the page is 608 px wide",
	} {
		require.Greater(t, len(r.failures), i, r.failures)
		assert.Contains(t, r.failures[i], want)
	}
	assert.Len(t, r.failures, 6)
}

// TestScreenshot: the window, and all of the page.
func TestScreenshot(t *testing.T) {
	Program(t)
	b := Open(t, 1280, 800, site(t)(page(`<div style="height: 1500px"></div>`)), "true")
	for whole, height := range map[bool]int{false: 800, true: Eval[int](b, "document.documentElement.scrollHeight")} {
		picture, err := png.DecodeConfig(bytes.NewReader(b.Screenshot(whole)))
		require.NoError(t, err)
		assert.Equal(t, []int{1280, height}, []int{picture.Width, picture.Height})
	}
}
