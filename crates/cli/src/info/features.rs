//! **Purpose.** `fourscore info --features`: the feature table.

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{ContentArrangement, Table};
use fourscore_ondisk::features::table;
use serde_json::json;

use crate::failure::Result;
use crate::output::Stdout;

/// Prints the table of features.
pub(crate) fn print(as_json: bool, out: &mut Stdout) -> Result<()> {
    if as_json {
        let rows: Vec<_> = table::rows()
            .map(|row| {
                json!({
                    "name": row.name,
                    "class": row.class.to_string(),
                    "bit": row.bit,
                    "support": row.support.to_string(),
                    "note": row.note,
                })
            })
            .collect();
        return out.write(format!("{:#}\n", serde_json::Value::Array(rows)).as_bytes());
    }
    let mut table = Table::new();
    table
        .load_style(ASCII_MARKDOWN)
        .set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["feature", "class", "bit", "fourscore can", "what it is"]);
    for row in table::rows() {
        table.add_row([
            row.name.to_owned(),
            row.class.to_string(),
            format!("{:#x}", row.bit),
            row.support.to_string(),
            row.note.to_owned(),
        ]);
    }
    out.write(format!("{table}\n").as_bytes())
}
