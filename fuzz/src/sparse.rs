//! **Purpose.** Images without their zeroes, so that they are small in git.
//!
//! **Model.** All numbers are little-endian and have 32 bits.
//!
//! ```text
//! file = length of the image, piece*        piece = offset, length, bytes
//! ```

/// Zeroes in whole units of this size are left out.
const UNIT_BYTES: usize = 64;

/// The file for an image of less than 4 GiB.
///
/// # Panics
/// If the image is larger.
#[must_use]
pub fn encode(image: &[u8]) -> Vec<u8> {
    let number = |value: usize| u32::try_from(value).expect("small images").to_le_bytes();
    let mut file = number(image.len()).to_vec();
    let is_zero = |unit: &[u8]| unit.iter().all(|&byte| byte == 0);
    let mut offset = 0;
    for run in image
        .chunks(UNIT_BYTES)
        .collect::<Vec<_>>()
        .chunk_by(|a, b| is_zero(a) == is_zero(b))
    {
        let bytes = run.concat();
        if !is_zero(&bytes) {
            file.extend_from_slice(&number(offset));
            file.extend_from_slice(&number(bytes.len()));
            file.extend_from_slice(&bytes);
        }
        offset += bytes.len();
    }
    file
}

/// The image that a file holds.
///
/// # Panics
/// If the file was not made by [`encode`].
#[must_use]
pub fn decode(file: &[u8]) -> Vec<u8> {
    let mut input = crate::input::Input::new(file);
    let mut image = vec![0; input.u32() as usize];
    while !input.is_empty() {
        let (offset, len) = (input.u32() as usize, input.u32() as usize);
        image[offset..offset + len].copy_from_slice(input.bytes(len));
    }
    image
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_comes_back_and_its_zeroes_cost_nothing() {
        let mut image = vec![0; 10_000];
        image[64..70].fill(1);
        image[9_999] = 2;
        let file = encode(&image);
        assert_eq!(decode(&file), image);
        assert!(file.len() < 200, "{}", file.len());
        assert!(decode(&encode(&[])).is_empty());
    }
}
