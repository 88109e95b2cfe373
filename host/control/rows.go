package control

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"sync"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// rowCache keeps the encoding of every agent row, checked against the contract when the row changed. Only
// the uptime changes all the time; it is put in where it belongs. So ps costs copying, however often it is
// asked.
type rowCache struct {
	mu   sync.Mutex
	rows map[rowKey]*cachedRow
}

type rowKey struct{ uid, seat string }

// cachedRow is an encoded row cut open where its uptime stands.
type cachedRow struct {
	row        wire.AgentRow // without uptime
	head, tail []byte
}

var (
	rowSchema   = sync.OnceValues(func() (*wire.Schema, error) { return wire.SchemaFor(reflect.TypeFor[wire.AgentRow](), wire.Shape{}) })
	uptimeField = []byte(`,"uptimeMs":0`)
)

func newRowCache() *rowCache { return &rowCache{rows: map[rowKey]*cachedRow{}} }

// rowList is a list of rows as ps answers it.
type rowList struct {
	rows   []*cachedRow
	uptime []int64
}

// AppendJSON appends the JSON array to dst.
func (l rowList) AppendJSON(dst []byte) []byte {
	size := 2
	for _, r := range l.rows {
		size += len(r.head) + len(r.tail) + 24
	}
	dst = append(slices.Grow(dst, size), '[')
	for i, r := range l.rows {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, r.head...)
		dst = strconv.AppendInt(dst, l.uptime[i], 10)
		dst = append(dst, r.tail...)
	}
	return append(dst, ']')
}

// list finds or makes the encodings of rows. A row that breaks the contract is an *wire.Error internal, executed.
func (c *rowCache) list(rows []wire.AgentRow) (rowList, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := rowList{make([]*cachedRow, len(rows)), make([]int64, len(rows))}
	for i := range rows {
		r, err := c.row(&rows[i])
		if err != nil {
			return rowList{}, err
		}
		l.rows[i], l.uptime[i] = r, rows[i].UptimeMs
	}
	if len(c.rows) > len(rows) {
		c.keep(l.rows)
	}
	return l, nil
}

// keep forgets every row but those found.
func (c *rowCache) keep(found []*cachedRow) {
	c.rows = make(map[rowKey]*cachedRow, len(found))
	for _, r := range found {
		c.rows[rowKey{r.row.LifecycleUID, r.row.SeatID}] = r
	}
}

func (c *rowCache) row(r *wire.AgentRow) (*cachedRow, error) {
	key := rowKey{r.LifecycleUID, r.SeatID}
	if known := c.rows[key]; known != nil && sameRow(&known.row, r) {
		return known, nil
	}
	made := &cachedRow{row: *r}
	made.row.UptimeMs = 0
	p, err := json.Marshal(made.row)
	if err != nil {
		return nil, brokenRow(r, err)
	}
	schema, err := rowSchema()
	if err == nil {
		err = schema.Check(p)
	}
	if err != nil {
		return nil, brokenRow(r, err)
	}
	at := bytes.Index(p, uptimeField) + len(uptimeField) - 1
	made.head, made.tail = p[:at:at], p[at+1:]
	c.rows[key] = made
	return made, nil
}

func brokenRow(r *wire.AgentRow, err error) error {
	return &wire.Error{Code: wire.CodeInternal, Outcome: wire.OutcomeExecuted, Message: "the row of " + r.Name + " breaks the contract: " + err.Error()}
}

// sameRow compares two rows but for their uptime.
func sameRow(a, b *wire.AgentRow) bool {
	x := *a
	x.UptimeMs, x.Condition, x.Exit, x.Resume = b.UptimeMs, b.Condition, b.Exit, b.Resume
	return x == *b && samePart(a.Condition, b.Condition) && samePart(a.Exit, b.Exit) && samePart(a.Resume, b.Resume)
}

func samePart[T any](a, b *T) bool { return a == b || reflect.DeepEqual(a, b) }
