//! **Purpose.** Predicts published tables of ext4's allocator on machines with many cores, and
//! prints them as Markdown (`cargo xtask predict`). With `--table TEXT` it takes only tables whose
//! headings contain the text. With `--fit` it fits the model of each machine on its row, and prints
//! the number found.

use std::io;

use fourscore_lab::alloc::predict::outlook::{Agreement, Cell};
use fourscore_lab::alloc::predict::tables::{self, Table};
use fourscore_sync::atomic::{AtomicUsize, Ordering};
use fourscore_sync::count::LineHeap;
use fourscore_sync::{Mutex, thread};

#[global_allocator]
static HEAP: LineHeap = LineHeap;

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_fit = arguments.iter().any(|argument| argument == "--fit");
    let mut after = arguments
        .iter()
        .skip_while(|argument| *argument != "--table");
    let wanted = after.nth(1).map_or("", String::as_str);
    let heading =
        |table: &Table| format!("{}: {}, {}", table.source, table.machine.name, table.what);
    let tables: Vec<Table> = tables::ALL
        .iter()
        .filter(|table| heading(table).contains(wanted))
        .copied()
        .collect();
    if is_fit {
        return tables.iter().try_for_each(fit);
    }
    let rows = |table: &Table| 0..table.rows.len();
    let all: Vec<(usize, usize)> = (0..tables.len())
        .flat_map(|table| rows(&tables[table]).map(move |row| (table, row)))
        .collect();
    let cells = in_parallel(&all, |&(table, row)| {
        tables[table].predict(&tables[table].rows[row])
    })?;
    for (nr, table) in tables.iter().enumerate() {
        let of_table = all
            .iter()
            .zip(&cells)
            .filter(|((table, _), _)| *table == nr);
        let of_table: Vec<Cell> = of_table.map(|(_, cell)| *cell).collect();
        print!("{}", table.to_markdown(&of_table));
        println!("\n{}", summary(&of_table));
    }
    println!("\n### All tables\n\n{}", summary(&cells));
    Ok(())
}

fn summary(cells: &[Cell]) -> String {
    let Agreement {
        cells,
        direction,
        size,
        steady,
        steady_direction,
    } = Agreement::of(cells);
    format!(
        "Of {cells} cells that no model was fitted on, {direction} agree in direction and {size} in size. \
         The runs of {steady} are steady, and {steady_direction} of these agree in direction."
    )
}

/// Performs independent predictions on all cores of this machine; results are in the order of jobs.
fn in_parallel<J: Sync, R: Send>(
    jobs: &[J],
    perform: impl Fn(&J) -> io::Result<R> + Sync,
) -> io::Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let results: Vec<_> = jobs.iter().map(|_| Mutex::new(None)).collect();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let nr = next.fetch_add(1, Ordering::Relaxed)
                    && let Some(job) = jobs.get(nr)
                {
                    let result = perform(job);
                    eprintln!("{} of {}", nr + 1, jobs.len());
                    *results[nr].lock() = Some(result);
                }
            });
        }
    });
    let results = results
        .into_iter()
        .map(|result| result.into_inner().expect("each job is performed"));
    results.collect()
}

/// Finds the work around the allocator with which the patched rate of the fitted row is that which
/// was published, by halving an interval.
fn fit(table: &Table) -> io::Result<()> {
    let Some(row) = table
        .rows
        .iter()
        .find(|row| table.fitted == Some(row.threads))
    else {
        return Ok(());
    };
    let (mut low, mut high) = (0, 4_000_000);
    while high - low > 1 + low / 50 {
        let work = low + (high - low) / 2;
        if table.patched_with(row.threads, work)? > row.patched {
            low = work;
        } else {
            high = work;
        }
    }
    println!("{}, {}: {low}", table.machine.name, table.what);
    Ok(())
}
